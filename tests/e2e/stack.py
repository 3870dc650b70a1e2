"""`pagewire serve` as a process, for tests: started, waited for, ended, and looked for afterwards.

Every process of the stack inherits a marker in its environment, so that none can hide: not by
another parent, nor by another process group.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from pagewire.cli.ready import GATEWAY_SERVICE, parse_ready_line, wait_serving
from pagewire.kit.sockets import is_listening, unix_path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("gateway", "tokenizer_svc", "scheduler_svc", "worker_svc")
MARKER = "PAGEWIRE_TEST_STACK"
END_TIMEOUT_S = 60.0


@contextmanager
def start_stack(*flags: str, env: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """Run a stack; end it by SIGTERM and check that it leaves nothing."""
    stack = Stack(flags, env)
    try:
        yield stack.wait_ready()
        assert stack.end(signal.SIGTERM) == 0, stack.stderr()
        assert stack.processes() == []
        assert stack.runtime_files() == []
    finally:
        stack.close()


class Stack:
    """A running `pagewire serve` with a folder of its own for sockets; `close` ends it in any case.

    Attributes:
        http_url: Of the HTTP API, without /v1.
        grpc_target: Of the public gRPC API.
    """

    def __init__(self, flags: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        # Short: the path of a socket has at most 107 bytes.
        self.base = Path(tempfile.mkdtemp(prefix="pw-"))
        self.http_url = self.grpc_target = ""
        self._marker = uuid.uuid4().hex
        self._children: list[psutil.Process] = []
        self._stderr = (self.base / "stderr.txt").open("w+")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pagewire.cli",
                "serve",
                "--http-port=0",
                "--grpc-port=0",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._environment(env or {}),
            text=True,
            cwd=ROOT,
        )

    def wait_ready(self) -> Stack:
        """Wait for the ready line; the test's own timeout bounds it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        parsed = parse_ready_line(line)
        if parsed is None:
            self.process.kill()
            raise AssertionError(f"no ready line but {line!r}; it said:\n{self.stderr()}")
        self.http_url, self.grpc_target = parsed
        return self

    @property
    def scheduler_target(self) -> str:
        """Address of the scheduler, which is internal."""
        return self._scheduler_flag("--listen=")

    @property
    def scheduler_admin_target(self) -> str:
        """Address for the scheduler's administration, which is internal too."""
        return self._scheduler_flag("--admin-listen=")

    def _scheduler_flag(self, name: str) -> str:
        flags = self.child("scheduler_svc").cmdline()
        return next(flag.partition("=")[2] for flag in flags if flag.startswith(name))

    def stderr(self) -> str:
        return (self.base / "stderr.txt").read_text()

    def wait_stderr(self, text: str) -> None:
        """Wait until the stack has said the text on standard error."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while text not in self.stderr():
            assert time.monotonic() < deadline, f"it did not say {text!r} but:\n{self.stderr()}"
            assert self.process.poll() is None, f"it ended; it said:\n{self.stderr()}"

    def processes(self) -> list[psutil.Process]:
        """Return every living process of the stack, wherever it hangs."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def child(self, module: str) -> psutil.Process:
        """Return the child that runs a module; its command line contains the name."""
        found = [p for p in self.processes() if module in _cmdline(p)]
        assert len(found) == 1, [_cmdline(p) for p in self.processes()]
        return found[0]

    def kill_child(self, module: str) -> None:
        """Kill a child by SIGKILL and wait until its sockets are dead, which is after the signal.

        Of a stopped supervisor the dead child stays a zombie, so the process cannot be waited for.
        """
        child = self.child(module)
        own = [f for f in child.cmdline() if f.startswith(("--listen=", "--admin-listen="))]
        paths = [unix_path(flag.partition("=")[2]) for flag in own]
        child.kill()
        deadline = time.monotonic() + END_TIMEOUT_S
        while any(path is not None and is_listening(path) for path in paths):
            assert time.monotonic() < deadline, f"{module} is killed, and its sockets answer"

    def wait_children(self) -> None:
        """Wait until the supervisor has started its children, ready or not."""
        deadline = time.monotonic() + END_TIMEOUT_S
        supervisor = psutil.Process(self.process.pid)
        while len(supervisor.children()) < len(MODULES):
            assert time.monotonic() < deadline and self.process.poll() is None, self.stderr()

    def wait_replaced(self, module: str, dead: psutil.Process) -> psutil.Process:
        """Wait for the process that takes the place of a dead one, and return it."""
        dead.wait(END_TIMEOUT_S)
        deadline = time.monotonic() + END_TIMEOUT_S
        while time.monotonic() < deadline:
            for process in self.processes():
                if process != dead and module in _cmdline(process):
                    return process
        raise AssertionError(f"{module} did not come back; the stack said:\n{self.stderr()}")

    def wait_serving(self) -> None:
        """Wait until the gateway says that it serves."""
        asyncio.run(
            asyncio.wait_for(wait_serving(self.grpc_target, GATEWAY_SERVICE), END_TIMEOUT_S)
        )

    def runtime_files(self) -> list[Path]:
        """Return what the stack left, or has, in its folder."""
        # `**` alone would give folders and no files.
        return sorted([*self.base.rglob("pagewire-*"), *self.base.rglob("pagewire-*/**/*")])

    def end(self, *signals: signal.Signals) -> int:
        """Send the signals and wait until the supervisor has ended; return its exit code."""
        if self.process.poll() is None:
            self._children = psutil.Process(self.process.pid).children(recursive=True)
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(END_TIMEOUT_S)

    def wait_gone(self) -> list[psutil.Process]:
        """Wait for all processes of the stack to end; return those that did not.

        A process has no environment for a moment while it starts its program, so `processes` may
        miss it; the supervisor's children are known without it.
        """
        processes = {*self.processes(), *self._children}
        return psutil.wait_procs(processes, timeout=END_TIMEOUT_S)[1]

    def close(self) -> None:
        """End whatever is left, without a word."""
        for process in self.processes():
            process.kill()
        self.process.wait(END_TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._stderr.close()
        shutil.rmtree(self.base, ignore_errors=True)

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        kept = {name: v for name, v in os.environ.items() if not name.startswith("PAGEWIRE_")}
        return {**kept, "XDG_RUNTIME_DIR": str(self.base), MARKER: self._marker, **extra}

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            return not is_zombie and process.environ().get(MARKER) == self._marker
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


def _cmdline(process: psutil.Process) -> list[str]:
    """Return the command line of a process, which may have ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
