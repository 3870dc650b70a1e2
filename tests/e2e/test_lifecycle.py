"""Ways in which a stack ends, and parts of it: nothing is left, and what died comes back."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.e2e.stack import MODULES, Stack


@pytest.fixture
def stack() -> Iterator[Stack]:
    stack = Stack(["--device", "sim"])
    try:
        yield stack.wait_ready()
    finally:
        stack.close()


def complete(stack: Stack) -> httpx.Response:
    """A short completion; waits for a part that is coming back."""
    body = {"model": "smollm2", "prompt": "one two", "max_tokens": 4, "temperature": 0}
    return httpx.post(f"{stack.http_url}/v1/completions", json=body, timeout=100)


def test_a_stack_has_five_processes_that_tell_what_they_are(stack: Stack) -> None:
    assert [stack.child(module).is_running() for module in MODULES] == [True] * 4
    assert len(stack.processes()) == 5
    assert complete(stack).status_code == 200


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT], [signal.SIGHUP]]
)
def test_a_signal_ends_all_of_it(stack: Stack, signals: list[signal.Signals]) -> None:
    stack.end(*signals)
    assert stack.processes() == []
    assert stack.runtime_files() == []


def test_kill_9_of_the_supervisor_ends_all_of_it(stack: Stack) -> None:
    stack.end(signal.SIGKILL)
    assert stack.wait_gone() == []
    assert stack.runtime_files() == []


def test_kill_9_of_the_supervisor_while_it_starts_ends_all_of_it() -> None:
    stack = Stack(["--device", "sim"])
    try:
        stack.wait_children()
        stack.end(signal.SIGKILL)
        assert stack.wait_gone() == []
        assert stack.runtime_files() == []
    finally:
        stack.close()


@pytest.mark.parametrize("module", MODULES)
def test_a_killed_child_comes_back_and_serves(stack: Stack, module: str) -> None:
    first = stack.child(module)
    first.kill()
    second = stack.wait_replaced(module, first)
    assert second.pid != first.pid
    stack.wait_serving()
    assert complete(stack).status_code == 200


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--model=/nowhere/model"], "/nowhere/model"),
        (["--device=sim", "--max-model-len=1000000"], "--max-model-len"),
        (["--device=sim", "--kv-cache-memory-bytes=1000000"], "--kv-cache-memory-bytes"),
    ],
)
def test_what_keeps_a_stack_from_starting_is_one_clear_line(flags: list[str], reason: str) -> None:
    stack = Stack(flags)
    try:
        assert stack.end() == 1
        errors = [line for line in stack.stderr().splitlines() if "error" in line]
        assert len(errors) == 1 and errors[0].startswith("error: ") and reason in errors[0]
        assert psutil.wait_procs(stack.processes(), timeout=0)[1] == []
        assert stack.runtime_files() == []
    finally:
        stack.close()
