"""The process: what it imports, and that it starts without what it must not need."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Refuses what the service must do without, then runs it.
BLOCKED = """
import runpy, sys
for name in ("torch", "transformers", "gguf", "sentencepiece"):
    sys.modules[name] = None
sys.argv[0] = "tokenizer_svc"
runpy.run_module("tokenizer_svc", run_name="__main__")
"""


def python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def test_help_works_without_torch_and_transformers() -> None:
    result = python("-c", BLOCKED, "--help")
    assert result.returncode == 0, result.stderr
    assert "--max-prompt-bytes" in result.stdout


def test_a_folder_with_this_service_alone_runs(tmp_path: Path) -> None:
    for name in ("pagewire", "tokenizer_svc"):
        shutil.copytree(ROOT / name, tmp_path / name)
    result = python("-m", "tokenizer_svc", "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_only_what_is_needed_is_imported() -> None:
    code = "import tokenizer_svc.server, sys, json; print(json.dumps(sorted(sys.modules)))"
    modules = json.loads(python("-c", code).stdout)
    top = {name.split(".")[0] for name in modules}
    assert not top & {"torch", "transformers", "gguf", "sentencepiece", "scipy", "pandas"}
    assert not top & {"gateway", "scheduler_svc", "worker_svc"}


def test_a_model_that_is_not_there_is_one_line_and_an_exit_code() -> None:
    result = python("-m", "tokenizer_svc", "--model=/nowhere", "--listen=127.0.0.1:0",
                    "--metrics-port=0", "--admin-listen=127.0.0.1:0")  # fmt: skip
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: model '/nowhere'")


def test_it_serves_and_drains_without_torch_and_transformers(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED, "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0",
         "--metrics-port=0"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PAGEWIRE_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stderr is not None
    with process, process.stderr:
        try:
            events = (json.loads(line)["event"] for line in process.stderr)
            assert "serving" in events
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    assert len(list(tmp_path.rglob("*.zip"))) == 1
