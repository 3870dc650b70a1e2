"""PyTorch's profiler: the trace that it writes, and what it says of operators."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from worker_svc.profiler import TorchProfiler, region


def record_products(num_steps: int) -> TorchProfiler:
    profiler = TorchProfiler("cpu")
    matrix = torch.ones(8, 8)
    profiler.start()
    for _ in range(num_steps):
        with profiler.step("2 requests, 3 tokens"), region("forward"):
            torch.mm(matrix, matrix)
    profiler.stop()
    return profiler


def test_a_trace_has_steps_their_parts_and_operators(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json.gz"
    times = record_products(3).save(path)
    with gzip.open(path) as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    for name in ("step: 2 requests, 3 tokens", "forward", "aten::mm"):
        assert names.count(name) == 3
    calls = {operator.name: operator.calls for operator in times.operators}
    assert (calls["step"], calls["forward"], calls["aten::mm"]) == (3, 3, 3)
    assert times.total_self_cpu_ns > 0 and times.total_self_device_ns == 0
    assert list(tmp_path.iterdir()) == [path]
    assert capfd.readouterr().err == ""


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.mkdir()
    with pytest.raises(OSError):
        record_products(1).save(path)
    assert list(tmp_path.iterdir()) == [path]


def test_parts_cost_nothing_without_a_profile() -> None:
    with region("forward"):
        assert torch.ones(2).sum() == 2
