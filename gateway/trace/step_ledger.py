"""What the steps of one engine's stream took, summed up frame by frame.

A request that is in every step needs no bookkeeping of its own: the difference between two moments
says where its time went. One ledger a stream; it costs the same however many requests there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import NamedTuple, Protocol

from gateway.trace.parts import STEP_PARTS, fit


class Timings(Protocol):
    """A frame's timings, as `pagewire.v1.StepTimings` has them, in nanoseconds."""

    @property
    def schedule_ns(self) -> int: ...
    @property
    def execute_ns(self) -> int: ...
    @property
    def forward_ns(self) -> int: ...
    @property
    def sample_ns(self) -> int: ...
    @property
    def queue_ns(self) -> int: ...
    @property
    def busy_ns(self) -> int: ...
    @property
    def elapsed_ns(self) -> int: ...


class Moment(NamedTuple):
    """The arrival of a frame with a step's outputs."""

    number: int
    """Counts up within the stream."""
    now_ns: int
    """On this process's clock."""
    totals: Sequence[int]
    """By STEP_PARTS, since the stream's first frame; together they are the time since then."""
    step: Sequence[int]
    """By the first six of STEP_PARTS, of this frame's steps alone, from their planning on."""


NOWHERE = Moment(-(2**60), 0, (0,) * len(STEP_PARTS), (0,) * 6)
"""Before every moment, and far from each."""


class StepLedger:
    """The moments of one stream; `take` each frame that has outputs of steps."""

    def __init__(self) -> None:
        self._last = NOWHERE

    def take(self, timings: Timings) -> Moment:
        """Return the moment of a frame that has come just now."""
        now_ns = monotonic_ns()
        forward_ns, sample_ns = timings.forward_ns, timings.sample_ns
        queue_ns, busy_ns, elapsed_ns = timings.queue_ns, timings.busy_ns, timings.elapsed_ns
        step = (
            timings.schedule_ns,
            max(timings.execute_ns - queue_ns - busy_ns, 0),
            queue_ns,
            max(busy_ns - forward_ns - sample_ns, 0),
            forward_ns,
            sample_ns,
        )
        last = self._last
        if last is NOWHERE:
            self._last = Moment(0, now_ns, last.totals, step)
            return self._last
        parts = fit(step, elapsed_ns)
        parts[-1] = now_ns - last.now_ns - max(elapsed_ns, 0)
        totals = tuple(map(int.__add__, last.totals, parts))
        self._last = Moment(last.number + 1, now_ns, totals, step)
        return self._last


class NoLedger(StepLedger):
    """For who keeps no traces."""

    def take(self, timings: Timings) -> Moment:
        return NOWHERE


NO_LEDGER = NoLedger()
