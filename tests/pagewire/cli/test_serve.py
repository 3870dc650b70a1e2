"""Tests of `pagewire serve` as a process, with fake services as its children."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import MODULES, ROOT, Stack
from tests.fakes.fake_service import write_fake_services


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Start a stack of fake services; `start(*flags, **environment)`."""
    services = write_fake_services(tmp_path / "services")
    stacks = []

    def start(*flags: str, **env: str) -> Stack:
        stack = Stack(flags, {"PYTHONPATH": f"{services}:{ROOT}", **env})
        stacks.append(stack)
        return stack

    yield start
    for stack in stacks:
        stack.close()


def errors(stack: Stack) -> list[str]:
    return [line for line in stack.stderr().splitlines() if line.startswith("error: ")]


def test_the_ready_line_is_all_that_stands_on_standard_output(start):
    stack = start("--served-model-name=it's").wait_ready()
    stack.end(signal.SIGTERM)
    assert stack.process.stdout.read() == ""


@pytest.mark.parametrize("transport", ["uds", "tcp"])
def test_services_find_each_other_by_either_transport(start, transport):
    stack = start(f"--internal-transport={transport}").wait_ready()
    scheduler = stack.child("scheduler_svc").cmdline()
    listen = next(f for f in stack.child("worker_svc").cmdline() if f.startswith("--listen="))
    assert f"--workers={listen.removeprefix('--listen=')}" in scheduler
    assert ("unix:" in listen) == (transport == "uds")


@pytest.mark.parametrize(
    ("signals", "exit_code"),
    [
        ([signal.SIGTERM], 0),
        ([signal.SIGINT], 0),
        ([signal.SIGHUP], 0),
    ],
)
def test_a_signal_ends_the_stack_without_a_trace(start, signals, exit_code):
    stack = start().wait_ready()
    assert len(stack.processes()) == 5
    assert stack.end(*signals) == exit_code
    assert stack.processes() == []
    assert stack.runtime_files() == []


def test_a_signal_while_it_starts_ends_the_stack(start):
    stack = start(FAKE_GATEWAY="starting")
    stack.wait_stderr("worker: load weights")
    stack.end(signal.SIGTERM)
    assert stack.processes() == []
    assert stack.runtime_files() == []


def test_a_second_interrupt_ends_a_drain_that_hangs(start):
    stack = start(FAKE_WORKER_SVC="stubborn").wait_ready()
    stack.process.send_signal(signal.SIGINT)
    stack.wait_stderr("draining")
    assert stack.end(signal.SIGINT) == 130
    assert stack.processes() == []
    assert stack.runtime_files() == []


def test_two_interrupts_at_once_end_the_stack(start):
    stack = start(FAKE_WORKER_SVC="stubborn").wait_ready()
    stack.end(signal.SIGINT, signal.SIGTERM)
    assert stack.processes() == []


def test_kill_9_of_the_supervisor_takes_all_children_and_sockets(start):
    stack = start().wait_ready()
    assert stack.runtime_files() != []
    stack.end(signal.SIGKILL)
    assert stack.wait_gone() == []
    assert stack.runtime_files() == []


def test_the_next_start_sweeps_what_a_stack_killed_as_a_whole_left(start):
    stack = start().wait_ready()
    # A supervisor that is stopped restarts nobody, and children killed first clean nothing up.
    stack.process.send_signal(signal.SIGSTOP)
    for module in MODULES:
        stack.child(module).kill()
    stack.end(signal.SIGKILL)
    assert stack.wait_gone() == []
    left = stack.runtime_files()
    assert left != []
    start(XDG_RUNTIME_DIR=str(stack.base)).wait_ready()
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("module", MODULES)
def test_a_killed_child_comes_back_at_its_old_address(start, module):
    stack = start().wait_ready()
    first = stack.child(module)
    flags = first.cmdline()
    first.kill()
    assert stack.wait_replaced(module, first).cmdline() == flags
    stack.wait_serving()


def test_a_killed_child_leaves_no_socket_behind(start):
    stack = start(FAKE_WORKER_SVC="").wait_ready()
    stack.child("worker_svc").kill()
    stack.wait_stderr("the worker died (signal SIGKILL)")
    stack.end(signal.SIGTERM)
    assert stack.runtime_files() == []


def test_a_child_that_cannot_start_is_one_clear_line(start):
    stack = start(FAKE_TOKENIZER_SVC="fail", FAKE_GATEWAY="starting")
    assert stack.end() == 1
    assert errors(stack) == ["error: the tokenizer cannot start: there is no such model"]
    assert stack.processes() == []
    assert stack.runtime_files() == []


def test_a_child_that_keeps_dying_is_given_up(start):
    stack = start(FAKE_SCHEDULER_SVC="crash")
    assert stack.end() == 1
    assert errors(stack) == [
        "error: the scheduler died 5 times before it was ready, last with exit code 3"
    ]
    assert stack.stderr().count("starting it again") == 4


def test_a_port_in_use_is_found_before_anything_starts(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack = start(f"--grpc-port={port}")
        assert stack.end() == 2
    assert errors(stack) == [
        f"error: port {port} of 127.0.0.1 is in use, or no address of this machine; "
        "choose another one with --grpc-port"
    ]
    assert stack.runtime_files() == []


def test_warnings_and_stages_are_shown_and_the_rest_is_kept_for_the_log_files(start, tmp_path):
    stack = start(f"--log-dir={tmp_path / 'logs'}").wait_ready()
    stack.end(signal.SIGTERM)
    assert "worker: warning: a_warning number=7" in stack.stderr()
    assert "worker: load weights ...\n" in stack.stderr()
    assert "listening" not in stack.stderr()
    assert '"event": "listening"' in (tmp_path / "logs" / "worker.log").read_text()


def test_verbose_shows_all(start):
    stack = start("--verbose").wait_ready()
    stack.end(signal.SIGTERM)
    assert "worker: info: listening" in stack.stderr()


def test_keys_are_not_on_a_command_line(start):
    stack = start(PAGEWIRE_API_KEY="secret-key").wait_ready()
    assert not any("secret-key" in " ".join(p.cmdline()) for p in stack.processes())
    assert json.loads(stack.child("gateway").environ()["PAGEWIRE_API_KEY"]) == ["secret-key"]


def test_kill_9_after_a_child_was_killed_leaves_nothing(start):
    stack = start().wait_ready()
    # A supervisor that is stopped restarts nobody, and the child's sockets stay.
    stack.process.send_signal(signal.SIGSTOP)
    stack.kill_child("worker_svc")
    stack.end(signal.SIGKILL)
    assert stack.wait_gone() == []
    assert stack.runtime_files() == []


def test_kill_9_while_it_starts_leaves_nothing(start):
    stack = start()
    stack.wait_children()
    stack.end(signal.SIGKILL)
    assert stack.wait_gone() == []
    assert stack.runtime_files() == []


def test_where_smg_finds_the_engine_is_told_on_standard_error(start):
    stack = start("--vllm-grpc-port=0").wait_ready()
    listen = next(f for f in stack.child("scheduler_svc").cmdline() if "--vllm-grpc-listen=" in f)
    assert f"grpc://{listen.partition('=')[2]}" in stack.stderr()
