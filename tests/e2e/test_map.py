"""Five situations are provoked in one stack of four processes, and the map names each of them.

The sixth, a slow tokenizer, is in `tests/gateway/map/test_gateway_map.py`. Steps are slow, so that
the stack needs few cores: a machine that lacks cores for others is not what limits it then. The KV
pool holds two requests of 17 blocks, the batch has room for two.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest

from pagewire.kit.channels import open_channel
from pagewire.v1 import inference_pb2, inference_pb2_grpc
from tests.e2e.stack import MODULES, Stack, start_stack

FLAGS = (
    *("--device=sim", "--sim-step-time-us=50000", "--max-num-seqs=2", "--max-model-len=512"),
    "--num-gpu-blocks-override=35",
)
SHORT = {"prompt": [5, 6, 7], "max_tokens": 30}
LONG = {"prompt": list(range(5, 245)), "max_tokens": 250}
"""15 blocks at once, and 2 more within 32 steps."""
BOXES = ["gateway", "tokenizer-0", "scheduler-0", "worker-0.0"]
NUM_HOGS = 4
SPIN = "while True: pass"
PAUSE_S = 0.25
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with start_stack(*FLAGS) as stack:
        yield stack


@contextmanager
def load(stack: Stack, number: int, path: str, **body: Any) -> Iterator[None]:
    """Keep so many requests going, each followed by another one."""
    is_over = threading.Event()
    url = f"{stack.http_url}{path}"

    def ask() -> None:
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not is_over.is_set():
                with client.stream("POST", url, json=body) as answer:
                    for _ in answer.iter_raw():
                        if is_over.is_set():
                            return

    with ThreadPoolExecutor(number) as pool:
        asked = [pool.submit(ask) for _ in range(number)]
        try:
            yield
        finally:
            is_over.set()
        for each in asked:
            each.result()


def generating(stack: Stack, number: int, **body: Any) -> Any:
    return load(stack, number, "/v1/completions", ignore_eos=True, stream=True, **body)


def wait_until(stack: Stack, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the map once the condition holds of it."""
    said = dict[str, str]()
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        answer: dict[str, Any] = httpx.get(f"{stack.http_url}/v1/map", timeout=PATIENCE_S).json()
        if holds(answer):
            return answer
        said[answer["diagnosis"]["verdict"]] = answer["diagnosis"]["summary"]
        time.sleep(PAUSE_S)  # leaves the cores to the stack; a map lasts a second
    raise AssertionError(f"it did not come to that but said {said}")


def wait_for(stack: Stack, verdict: str) -> dict[str, Any]:
    """Return the diagnosis once it has the verdict."""
    answer = wait_until(stack, lambda answer: answer["diagnosis"]["verdict"] == verdict)
    diagnosis: dict[str, Any] = answer["diagnosis"]
    return diagnosis


def advice(diagnosis: dict[str, Any]) -> str:
    return " ".join(diagnosis["try"])


def test_without_requests_it_is_idle_and_every_process_tells_of_itself(stack: Stack) -> None:
    assert wait_for(stack, "idle")["box"] is None
    answer = wait_until(stack, has_heard_from_all)
    boxes = {box["id"]: box for box in answer["boxes"]}
    assert list(boxes) == BOXES
    assert {box["state"] for box in boxes.values()} == {"ready"}
    for box in boxes.values():
        assert box["process"]["rss_bytes"] > 10 << 20
        assert 0 < box["process"]["cpu_cores"] < 1


def has_heard_from_all(answer: dict[str, Any]) -> bool:
    """Whether two heartbeats of each have come, so that there are rates and round trips."""
    trips = {edge["to"]: edge["round_trip_ms"] for edge in answer["edges"]}
    processes = {box["id"]: box["process"] or {} for box in answer["boxes"]}
    return all(trips.get(name) for name in BOXES[1:]) and all(
        processes[name].get("cpu_cores") for name in BOXES
    )


def test_few_requests_whose_steps_are_slow_are_bound_by_the_worker(stack: Stack) -> None:
    with generating(stack, 2, **SHORT):
        found = wait_for(stack, "worker-bound")
    assert found["box"] == "worker-0.0"
    assert found["why"]["forward_share"] > 0.9
    assert "--quantization" in advice(found) and "--data-parallel-size 2" in advice(found)


def test_more_requests_than_the_batch_holds_are_bound_by_the_queue(stack: Stack) -> None:
    with generating(stack, 20, **SHORT):
        found = wait_for(stack, "queue-bound")
        frame = subprocess.run(
            [sys.executable, "-m", "pagewire.cli", "map", f"--url={stack.http_url}", "--once"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert "queue-bound at scheduler-0: the batch is full" in frame
    assert "» scheduler-0" in frame and "running 2 of 2" in frame
    assert found["box"] == "scheduler-0"
    assert found["try"][0] == "--max-num-seqs 4"
    assert found["why"]["kv_usage"] < 0.5


def test_requests_that_take_each_others_blocks_are_bound_by_the_kv_cache(stack: Stack) -> None:
    with generating(stack, 2, **LONG):
        found = wait_for(stack, "kv-bound")
        while not found["why"]["preemptions_per_s"]:
            found = wait_for(stack, "kv-bound")
    assert found["box"] == "scheduler-0"
    assert "--kv-cache-memory-bytes" in advice(found)


async def test_a_client_that_does_not_read_is_told_from_a_slow_server(stack: Stack) -> None:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1024),
    ]
    async with open_channel(stack.grpc_target, options=options) as channel:
        request = inference_pb2.GenerateRequest(
            text="abc",
            stopping=inference_pb2.StoppingOptions(max_tokens=250, ignore_eos=True),
            sampling=inference_pb2.SamplingOptions(n=2),
            response=inference_pb2.ResponseOptions(logprobs=20),
        )
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        assert await call.read(), "it was admitted"
        found = wait_for(stack, "slow-client")
        call.cancel()
    assert found["box"] == "clients"
    assert found["why"]["unread_bytes"] > 0, "what it does not take is merged, and waits"


def test_programs_on_the_same_core_leave_too_little_of_it(stack: Stack) -> None:
    core = min(os.sched_getaffinity(0))
    with pinned(stack, core), hogs(core), load(stack, 8, "/tokenize", prompt="word " * 300):
        found = wait_for(stack, "cpu-oversubscribed")
    assert found["why"]["waiting_threads"] >= found["why"]["cores"]
    assert "--num-threads" in advice(found)


@contextmanager
def pinned(stack: Stack, core: int) -> Iterator[None]:
    """Keep every thread of the stack on one core."""
    cores = os.sched_getaffinity(0)
    set_affinity(stack, {core})
    try:
        yield
    finally:
        set_affinity(stack, cores)


def set_affinity(stack: Stack, cores: set[int]) -> None:
    for module in MODULES:
        for thread in psutil.Process(stack.child(module).pid).threads():
            os.sched_setaffinity(thread.id, cores)


@contextmanager
def hogs(core: int) -> Iterator[None]:
    """Run programs that never rest on a core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # which they inherit
    try:
        programs = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(NUM_HOGS)]
    finally:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
