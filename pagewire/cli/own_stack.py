"""A stack that a client command starts for itself when no gateway is up, and stops again.

It runs `pagewire serve` as a child on free ports, in a session of its own, so that Ctrl-C in the
terminal cancels an answer and not the stack; the stack ends with this process in any case.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pagewire.cli.ready import parse_ready_line
from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.lifecycle import child_environment

_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class OwnStack:
    """A running stack."""

    http_url: str
    """Of the HTTP API, without /v1."""
    target: str
    """Of the public gRPC API."""
    process: subprocess.Popen[str]

    def is_alive(self) -> bool:
        """Whether it runs; a service of it that died is started again by it."""
        return self.process.poll() is None


@contextmanager
def own_stack(model: str, *more_flags: str) -> Iterator[str]:
    """Start a stack and give its gRPC target; stop it on leaving.

    Args:
        model: Value of --model.
        more_flags: Of `pagewire serve`.

    Raises:
        ServiceUnavailableError: It did not start; it has said why on standard error.
    """
    with start_own_stack([f"--model={model}", *more_flags]) as stack:
        yield stack.target


@contextmanager
def start_own_stack(
    flags: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[OwnStack]:
    """Start a stack and wait until it serves; stop it on leaving.

    Args:
        flags: Of `pagewire serve`; ports are free ones if they name none.
        environment: More variables.

    Raises:
        ServiceUnavailableError: It did not start; it has said why on standard error.
    """
    argv = [sys.executable, "-m", "pagewire.cli", "serve"]
    with subprocess.Popen(
        [*argv, "--http-port=0", "--grpc-port=0", "--drain-timeout=0", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=child_environment() | dict(environment or {}),
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield OwnStack(*_wait_ready(process), process)
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[str]) -> tuple[str, str]:
    for line in process.stdout or ():
        if (parsed := parse_ready_line(line)) is not None:
            return parsed
    raise ServiceUnavailableError("the stack did not start")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
