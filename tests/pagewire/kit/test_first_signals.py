"""SIGTERM before a service has handlers, which the kernel drops for process 1 of a container."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# Plays process 1, and says what is imported when the handler comes.
AS_FIRST_PROCESS = """
import os, runpy, signal, sys
os.getpid = lambda: 1
install = signal.signal
def spy(number, handler):
    if number == signal.SIGTERM:
        print(*sorted({"grpc", "google", "uvloop", "yaml"} & set(sys.modules)), "first")
    return install(number, handler)
signal.signal = spy
sys.argv = [sys.argv[1], "--help"]
runpy.run_module(sys.argv[0], run_name="__main__")
"""
TERMINATED = """
import os, signal, sys
pid = os.getpid()
if sys.argv[1] == "first":
    os.getpid = lambda: 1
from pagewire.kit.first_signals import end_on_sigterm
end_on_sigterm()
os.kill(pid, signal.SIGTERM)
"""


@pytest.mark.parametrize(
    "module", ["gateway", "tokenizer_svc", "scheduler_svc", "worker_svc", "pagewire.cli"]
)
def test_the_handler_is_there_before_anything_large_is_imported(module: str) -> None:
    done = run(AS_FIRST_PROCESS, module)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["first"]


def test_the_first_process_ends_with_the_exit_code_of_sigterm() -> None:
    assert run(TERMINATED, "first").returncode == 128 + signal.SIGTERM


def test_other_processes_keep_the_default_action() -> None:
    assert run(TERMINATED, "other").returncode == -signal.SIGTERM


def run(program: str, argument: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, argument]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
