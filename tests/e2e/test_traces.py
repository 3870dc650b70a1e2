"""Where the time of a request went, on whole stacks: its parts are all of its time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.stack import Stack, start_stack

STEP_TIME_US = 5000
# Enough for one request of the longest kind, not for two.
NUM_BLOCKS = 34
MAX_MODEL_LEN = 512
BIN = Path(sys.executable).parent
WAIT_S = 120.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack whose steps take a known time, and whose KV cache is small."""
    with start_stack(
        *("--device", "sim", "--sim-step-time-us", str(STEP_TIME_US)),
        *("--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-model-len", str(MAX_MODEL_LEN)),
        *("--max-num-seqs", "8", "--max-num-batched-tokens", "64"),
    ) as stack:
        yield stack


def body(num_words: int, max_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt": " ".join(f"word{number}" for number in range(num_words)),
        "max_tokens": max_tokens,
        "temperature": 1,
        "seed": num_words,
        "ignore_eos": True,
        **more,
    }


def ask(stack: Stack, request_id: str, body: dict[str, Any], on_first: Any = None) -> float:
    """Make a request, read all of its answer, and return how long that took here, in seconds.

    Args:
        stack: Is asked.
        request_id: The request's.
        body: Of a completion.
        on_first: Called once, when the first part of the answer is there.
    """
    began_s = time.monotonic()
    headers = {"x-request-id": request_id}
    url = f"{stack.http_url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=WAIT_S) as answer:
        assert answer.status_code == 200, answer.read()
        for part in answer.iter_raw():
            if part and on_first is not None:
                on_first = on_first()
    return time.monotonic() - began_s


def trace_of(stack: Stack, request_id: str, took_s: float) -> dict[str, Any]:
    """Return a trace, which is there a moment after the answer, once it is found to be whole."""
    url = f"{stack.http_url}/v1/requests/{request_id}/trace"
    deadline_s = time.monotonic() + WAIT_S
    while (answer := httpx.get(url)).status_code == 404:
        assert time.monotonic() < deadline_s
    trace: dict[str, Any] = answer.json()
    duration_s = trace["duration_s"]
    uncovered_s = abs(duration_s - sum(trace["parts"].values()))
    assert uncovered_s <= max(0.005, 0.02 * duration_s), trace
    # Before the last part the answer has not ended for the client either.
    assert duration_s - trace["parts"].get("write", 0.0) <= took_s
    for output in trace["outputs"]:
        at_s = output["start_s"]
        for segment in output["segments"]:
            assert segment["start_s"] == pytest.approx(at_s, abs=1e-5)
            at_s = segment["start_s"] + segment["duration_s"]
            assert sum(segment["parts"].values()) == pytest.approx(segment["duration_s"], abs=1e-4)
    return trace


def last_output(trace: dict[str, Any]) -> dict[str, Any]:
    (output,) = (each for each in trace["outputs"] if each["is_last"])
    return output


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_parts_are_the_time_of_a_request(stack: Stack, stream: bool, n: int) -> None:
    request_id = f"plain-{stream}-{n}"
    trace = trace_of(stack, request_id, ask(stack, request_id, body(40, 30, stream=stream, n=n)))
    assert len(trace["outputs"]) == n
    assert trace["output_tokens"] == 30 * n
    segments = last_output(trace)["segments"]
    assert [each["kind"] for each in segments[:2]] == ["admission", "queue"]
    chunks = [each for each in segments if each["kind"] == "prefill"]
    assert sum(each["tokens"] for each in chunks) + trace["cached_tokens"] / n >= 40
    # The worker's steps take a known time, and that is where most of it went.
    num_steps = sum(each["steps"] for each in segments)
    step_s = STEP_TIME_US / 1e6
    assert trace["parts"]["forward"] + trace["parts"]["sample"] >= 0.8 * num_steps * step_s


def test_a_preemption_is_a_part(stack: Stack) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = {
            f"full-{number}": pool.submit(
                ask, stack, f"full-{number}", body(40 + number, 200, stream=True)
            )
            for number in range(4)
        }
        traces = [trace_of(stack, name, each.result()) for name, each in answers.items()]
    preempted = [trace for trace in traces if trace["preemptions"]]
    assert preempted
    for trace in preempted:
        kinds = [segment["kind"] for segment in last_output(trace)["segments"]]
        assert trace["parts"]["preempted"] > 0
        # Its tokens are computed again.
        assert "prefill" in kinds[kinds.index("preempted") :]


def test_a_worker_killed_midway_is_a_part(stack: Stack) -> None:
    took_s = ask(
        stack, "killed", body(30, 100, stream=True), lambda: stack.child("worker_svc").kill()
    )
    trace = trace_of(stack, "killed", took_s)
    assert trace["recoveries"] == 1
    assert trace["output_tokens"] == 100
    assert trace["parts"]["recovery"] > 0
    kinds = [segment["kind"] for segment in last_output(trace)["segments"]]
    assert kinds[kinds.index("recovery") + 1] == "prefill"
    stack.wait_serving()


def test_the_command_draws_what_was_slowest(stack: Stack) -> None:
    trace_of(stack, "drawn", ask(stack, "drawn", body(30, 5)))
    command = [str(BIN / "pagewire"), "trace", "--url", stack.http_url]
    one = _run([*command, "drawn", "--width", "90"])
    assert "worker: prefill" in one and "forward" in one and "sum" in one
    assert max(map(len, one.splitlines())) <= 90
    slowest = httpx.get(f"{stack.http_url}/v1/requests").json()["slowest"][0]
    drawn = _run([*command, "--slowest"])
    assert drawn.splitlines()[1].startswith(slowest["id"])
    assert json.loads(_run([*command, "drawn", "--json"]))["id"] == "drawn"


@pytest.mark.parametrize("stream", [False, True])
def test_parts_are_the_time_of_an_answer_of_a_real_model(
    smollm2_stack: Stack, stream: bool
) -> None:
    request_id = f"real-{stream}"
    took_s = ask(smollm2_stack, request_id, body(20, 16, stream=stream))
    trace = trace_of(smollm2_stack, request_id, took_s)
    assert trace["output_tokens"] == 16
    assert trace["parts"]["forward"] > trace["parts"]["schedule"]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout
