"""PyTorch's profiler: the trace that it writes, and what it says of operators."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

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
        profiler.after_step()
    profiler.stop()
    return profiler


def read_events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def test_a_trace_has_steps_their_parts_and_operators(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json.gz"
    times = record_products(3).save(path)
    events = read_events(path)
    names = [event.get("name") for event in events]
    for name in ("step: 2 requests, 3 tokens", "forward", "aten::mm"):
        assert names.count(name) == 3
    calls = {operator.name: operator.calls for operator in times.operators}
    assert (calls["step"], calls["forward"], calls["aten::mm"]) == (3, 3, 3)
    assert times.total_self_cpu_ns > 0 and times.total_self_device_ns == 0
    assert list(tmp_path.iterdir()) == [path]
    assert capfd.readouterr().err == ""


def test_segments_become_one_trace_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_svc.profiler.SEGMENT_EVENTS", 1)
    path = tmp_path / "x.json.gz"
    times = record_products(5).save(path)
    events = read_events(path)
    steps = [event["ts"] for event in events if str(event.get("name")).startswith("step: ")]
    assert len(steps) == 5 and steps == sorted(set(steps))
    assert sum(event.get("name") == "process_labels" for event in events) <= 3
    assert next(operator.calls for operator in times.operators if operator.name == "aten::mm") == 5


def test_steps_that_take_longer_than_those_before_end_their_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiler = record_products(1)
    assert profiler._steps_per_segment > 100
    monkeypatch.setattr("worker_svc.profiler.SEGMENT_S", 0.0)
    num_segments = len(profiler._segments)
    profiler.start()
    for _ in range(3):
        with profiler.step("1 requests, 9 tokens"):
            torch.ones(2).sum()
        profiler.after_step()
    profiler.stop()
    assert len(profiler._segments) == num_segments + 4  # the last one has no step


def test_a_profile_says_when_it_holds_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_svc.profiler.MAX_EVENTS", 4)
    profiler = TorchProfiler("cpu")
    profiler.start()
    with profiler.step("1 requests, 1 tokens"):
        torch.ones(2).sum()
    assert profiler.after_step()
    profiler.stop()


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.mkdir()
    with pytest.raises(OSError):
        record_products(1).save(path)
    assert list(tmp_path.iterdir()) == [path]


def test_parts_cost_nothing_without_a_profile() -> None:
    with region("forward"):
        assert torch.ones(2).sum() == 2
