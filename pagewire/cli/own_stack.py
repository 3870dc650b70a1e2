"""A stack that a client command starts for itself when no gateway is up, and stops again.

It runs `pagewire serve` as a child on free ports, in a session of its own, so that Ctrl-C in the
terminal cancels an answer and not the stack; the stack ends with this process in any case.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pagewire.cli.ready import parse_ready_line
from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.lifecycle import child_environment

_STOP_TIMEOUT_S = 60.0


@contextmanager
def own_stack(model: str, *more_flags: str) -> Iterator[str]:
    """Start a stack and give its gRPC target; stop it on leaving.

    Args:
        model: Value of --model.
        more_flags: Of `pagewire serve`.

    Raises:
        ServiceUnavailableError: It did not start; it has said why on standard error.
    """
    with own_stack_process([f"--model={model}", *more_flags]) as (target, _):
        yield target


@contextmanager
def own_stack_process(
    flags: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a stack and give its gRPC target and its process; stop it on leaving.

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
            yield _wait_ready(process), process
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[str]) -> str:
    for line in process.stdout or ():
        if (parsed := parse_ready_line(line)) is not None:
            return parsed[1]
    raise ServiceUnavailableError("the stack did not start")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
