"""A clock in milliseconds that stands still unless a test moves it."""

from __future__ import annotations

import pytest

from gateway.trace import output_trace, request_trace, step_ledger

MS = 1_000_000


class Clock:
    """Gives the time that it was set to."""

    def __init__(self) -> None:
        self.now_ms = 1000.0

    def __call__(self) -> int:
        return int(self.now_ms * MS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What all traces read."""
    clock = Clock()
    for module in (output_trace, request_trace, step_ledger):
        monkeypatch.setattr(module, "monotonic_ns", clock)
    return clock
