"""One child process: starts it, reads its output line by line, says how it ended.

It restarts nothing: `pagewire.cli.supervisor` decides what an end means. Children get a session of
their own, so that Ctrl-C in the terminal reaches only the supervisor, which drains in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pagewire.kit.tasks import cancel_and_wait

LineHandler = Callable[[str, str], None]
"""Called with the child's name and a line of its output."""

ERROR_PREFIX = "error: "

_CHUNK_BYTES = 64 * 1024
_MAX_LINE_BYTES = 256 * 1024
_LAST_OUTPUT_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run."""

    name: str
    """Short name in messages, such as `scheduler`."""
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of this child alone, on top of that of all."""


class ChildProcess:
    """A process that was started. Belongs to one event loop; whoever starts it calls `wait`."""

    def __init__(self, spec: ChildSpec, process: Process, on_line: LineHandler) -> None:
        self.spec = spec
        self.error: str | None = None
        """The last `error: ...` line, without its prefix: why a service ended itself."""
        self._process = process
        self._on_line = on_line
        self._reader = asyncio.create_task(self._read(), name=f"output of {spec.name}")

    @classmethod
    async def start(
        cls, spec: ChildSpec, environment: Mapping[str, str], on_line: LineHandler
    ) -> ChildProcess:
        """Start the process, its standard output and error in one pipe.

        Raises:
            OSError: It cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            *spec.argv,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env={**environment, **spec.environment},
            start_new_session=True,
        )
        return cls(spec, process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and whatever it started itself."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end and the end of its output; return the exit code (negative: signal)."""
        try:
            code = await self._process.wait()
            # Bounded: something that outlived the child may hold the pipe open.
            await asyncio.wait({self._reader}, timeout=_LAST_OUTPUT_TIMEOUT_S)
        finally:
            await cancel_and_wait(self._reader)
        return code

    async def _read(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        pending = b""
        while chunk := await stream.read(_CHUNK_BYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            if len(pending) > _MAX_LINE_BYTES:
                lines.append(pending)
                pending = b""
            for line in lines:
                self._take(line)
        if pending:
            self._take(pending)

    def _take(self, raw: bytes) -> None:
        line = raw.decode("utf-8", "replace").rstrip("\r")
        if line.startswith(ERROR_PREFIX):
            self.error = line.removeprefix(ERROR_PREFIX)
        elif line:
            self._on_line(self.spec.name, line)


def in_words(name: str) -> str:
    """Return a child's name as a sentence has it: `the worker`, and of several `worker-1`."""
    return name if name[-1:].isdigit() else f"the {name}"


def describe_exit(code: int) -> str:
    """Return an exit code in words."""
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
