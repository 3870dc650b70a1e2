"""A gateway in a process of its own that takes calls and answers none, to be killed or stopped.

As a program it says its target in a line, and then a line for every call that came.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.scripted_inference import Call, running_inference

ROOT = Path(__file__).resolve().parents[2]
MAX_CALLS = 64
METHODS = ("Generate", "Chat", "CountTokens")


class SilentGateway:
    """The process.

    Attributes:
        target: Where it listens.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.fakes.silent_inference"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.target = self._line()

    def wait_calls(self, number: int) -> None:
        """Wait for so many more calls."""
        for _ in range(number):
            self._line()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended"
        return line.strip()


@contextmanager
def silent_gateway() -> Iterator[SilentGateway]:
    """Run one; it is killed at the end."""
    gateway = SilentGateway()
    try:
        yield gateway
    finally:
        gateway.close()


def main() -> None:
    def stay_silent(_: Any, call: Call) -> Iterator[Any]:
        print("call", flush=True)
        call.ended.wait()
        yield from ()

    with running_inference(max_calls=MAX_CALLS) as servicer:
        servicer.scripts = dict.fromkeys(METHODS, stay_silent)
        print(servicer.target, flush=True)
        sys.stdin.read()  # until the test has ended


if __name__ == "__main__":
    main()
