"""`pagewire serve` as a process, for tests: started, waited for, ended, and looked for afterwards.

Every process of the stack inherits a marker in its environment, so that none can hide: not by
another parent, nor by another process group.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from pagewire.cli.ready import parse_ready_line

ROOT = Path(__file__).resolve().parent.parent
MARKER = "PAGEWIRE_TEST_STACK"
END_TIMEOUT_S = 60.0


class StackProcess:
    """A running `pagewire serve` with a folder of its own for sockets; `close` ends it in any case.

    Attributes:
        url: Of the HTTP API.
        target: Of the gRPC API.
    """

    def __init__(self, flags: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        # Short: the path of a socket has at most 107 bytes.
        self.base = Path(tempfile.mkdtemp(prefix="pw-"))
        self.url = self.target = ""
        self._marker = uuid.uuid4().hex
        self._stderr = (self.base / "stderr.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pagewire.cli", "serve", "--http-port=0", "--grpc-port=0", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._environment(env or {}),
            text=True,
            cwd=ROOT,
        )

    def wait_ready(self) -> StackProcess:
        """Wait for the ready line; the test's own timeout bounds it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        parsed = parse_ready_line(line)
        if parsed is None:
            self.process.kill()
            raise AssertionError(f"no ready line but {line!r}; it said:\n{self.stderr()}")
        self.url, self.target = parsed
        return self

    def stderr(self) -> str:
        return (self.base / "stderr.txt").read_text()

    def processes(self) -> list[psutil.Process]:
        """Return every living process of the stack, wherever it hangs."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def child(self, module: str) -> psutil.Process:
        """Return the child that runs a module; its command line contains the name."""
        found = [p for p in self.processes() if module in p.cmdline()]
        assert len(found) == 1, [p.cmdline() for p in self.processes()]
        return found[0]

    def runtime_files(self) -> list[Path]:
        """Return what the stack left, or has, in its folder."""
        return sorted(self.base.rglob("pagewire-*/**"))

    def end(self, *signals: signal.Signals) -> int:
        """Send the signals and wait until the supervisor has ended; return its exit code."""
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(END_TIMEOUT_S)

    def wait_gone(self) -> list[psutil.Process]:
        """Wait for all processes of the stack to end; return those that did not."""
        return psutil.wait_procs(self.processes(), timeout=END_TIMEOUT_S)[1]

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
