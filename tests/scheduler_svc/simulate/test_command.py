import json
import subprocess
import sys

import pytest

from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.errors import FailedPreconditionError
from scheduler_svc.simulate.command import run
from scheduler_svc.simulate.config import SimulateConfig

SMALL = ["--num-requests=60", "--prompt-len=64", "--output-len=8"]


def config(*flags):
    return load_config(SimulateConfig, prog="simulate", argv=[*SMALL, *flags], env={})


def simulated(capsys, *flags):
    assert run(config("--json=-", *flags)) == 0
    return json.loads(capsys.readouterr().out)


def without_wall_time(report):
    return {name: value for name, value in report.items() if name != "wall_s"}


def test_the_same_settings_give_the_same_figures(capsys):
    first, second = (without_wall_time(simulated(capsys)) for _ in range(2))
    assert first == second
    assert first["requests"]["finished"] == 60


def test_figures_hang_together(capsys):
    report = simulated(capsys, "--request-rate=100", "--num-prefix-groups=2")
    for latency in report["latency_s"].values():
        assert latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert report["latency_s"]["ttft_s"]["mean"] < report["latency_s"]["e2e_s"]["mean"]
    assert 0 < report["scheduler"]["prefix_cache_hit_rate"] < 1
    assert len(report["over_time"][0]["time_s"]) == len(report["over_time"][0]["num_waiting"])


def test_a_faster_gpu_answers_sooner(capsys):
    h100, l4 = (simulated(capsys, f"--gpu={gpu}") for gpu in ("h100", "l4"))
    assert h100["latency_s"]["ttft_s"]["mean"] < l4["latency_s"]["ttft_s"]["mean"]


def test_the_text_has_the_latencies_and_files_have_the_rest(capsys, tmp_path):
    plot, figures = tmp_path / "run.svg", tmp_path / "run.json"
    assert run(config(f"--plot={plot}", f"--json={figures}")) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("TTFT", "ITL", "E2E", "60 finished", "preemptions"))
    assert plot.read_text().startswith("<svg")
    assert json.loads(figures.read_text())["requests"]["arrived"] == 60


def test_a_trace_is_replayed(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time_s,num_prompt_tokens,num_output_tokens\n0,10,2\n1,10,2\n")
    assert simulated(capsys, f"--trace={trace}")["requests"]["finished"] == 2


def test_a_model_that_does_not_fit_says_which_flag_helps():
    with pytest.raises(FailedPreconditionError, match="--kv-cache-memory-bytes"):
        run(config("--gpu=l4", "--sim-model=llama-3.1-70b"))


def test_a_picture_must_be_svg():
    with pytest.raises(ConfigError, match=r"--plot run\.png: must end in \.svg"):
        config("--plot=run.png")


def test_a_user_error_is_one_line():
    command = [sys.executable, "-m", "scheduler_svc.simulate", "--trace", "/nowhere/trace.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: /nowhere/trace.csv: No such file or directory\n"
