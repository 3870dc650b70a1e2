"""`pagewire profile` on a whole stack: a trace a rank, and the costliest operators of all."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.e2e.stack import ROOT, Stack, start_stack
from tests.worker_svc.tiny_models import write_tiny_model

VOCAB_SIZE = 160
NUM_STEPS = 6
TIMEOUT_S = 240.0


@pytest.mark.timeout(600)
def test_a_group_of_ranks_is_profiled_while_it_serves(tmp_path: Path) -> None:
    model, traces = tmp_path / "model", tmp_path / "traces"
    model.mkdir()
    write_tiny_model(model, vocab_size=VOCAB_SIZE)
    vocabulary = {f"t{number}": number for number in range(VOCAB_SIZE)}
    words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
    tokenizer = {"version": "1.0", "model": words, "pre_tokenizer": {"type": "Whitespace"}}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with start_stack(
        f"--model={model}",
        "--device=cpu",
        "--dtype=float32",
        "--num-threads=1",
        "--tensor-parallel-size=2",
        "--num-gpu-blocks-override=32",
        f"--profiler-dir={traces}",
    ) as stack:
        printed = profile_under_load(stack)
        assert "ERROR" not in stack.stderr()
    files = sorted(traces.iterdir())
    assert [file.name.split("-rank")[1][0] for file in files] == ["0", "1"]
    for file in files:
        assert f"{NUM_STEPS} steps in " in printed and str(file) in printed
        with gzip.open(file) as opened:
            names = [str(event.get("name")) for event in json.load(opened)["traceEvents"]]
        assert sum(name.startswith("step: ") for name in names) == NUM_STEPS
        assert {"prepare", "forward", "logits", "sample"} <= set(names)
        assert any(name.startswith("aten::") for name in names)
    table = printed.partition("\noperator")[2].splitlines()
    assert len(table) == 11 and any("aten::" in row for row in table)


def profile_under_load(stack: Stack) -> str:
    """Run the command as a user does, with one request after another meanwhile."""
    command = [sys.executable, "-m", "pagewire.cli", "profile", f"--steps={NUM_STEPS}"]
    has_ended = threading.Event()

    async def load() -> None:
        body = {"model": served_name(stack), "prompt": [5, 6, 7], "max_tokens": 4}
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            while not has_ended.is_set():
                answer = await client.post(f"{stack.http_url}/v1/completions", json=body)
                assert answer.status_code == 200, answer.text

    with subprocess.Popen(
        command,
        env=os.environ | {"XDG_RUNTIME_DIR": str(stack.base)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    ) as process:
        loader = threading.Thread(target=lambda: asyncio.run(load()))
        loader.start()
        try:
            printed, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            has_ended.set()
            loader.join()
            process.kill()
    assert process.returncode == 0, printed
    return printed


def served_name(stack: Stack) -> str:
    name: str = httpx.get(f"{stack.http_url}/v1/models").json()["data"][0]["id"]
    return name
