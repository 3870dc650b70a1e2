"""Frames of an engine for tests of traces, in milliseconds."""

from __future__ import annotations

from gateway.trace.output_trace import TracedOutput
from gateway.trace.step_ledger import Moment, StepLedger
from pagewire.v1 import scheduler_pb2
from tests.gateway.trace.conftest import MS, Clock


class Engine:
    """One stream's steps: each takes 10 ms, of which 6 are forward, 2 sample and 1 schedule."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ledger = StepLedger()

    def step(
        self, *, after_ms: float = 0.0, elapsed_ms: float = 10.0, way_ms: float = 0.0
    ) -> Moment:
        """A frame comes.

        Args:
            after_ms: Nothing happened for so long before.
            elapsed_ms: As the scheduler says.
            way_ms: How much longer it took here.
        """
        self.clock.now_ms += after_ms + elapsed_ms + way_ms
        return self.ledger.take(
            scheduler_pb2.StepTimings(
                schedule_ns=1 * MS,
                execute_ns=9 * MS,
                forward_ns=6 * MS,
                sample_ns=2 * MS,
                busy_ns=8 * MS,
                elapsed_ns=int(elapsed_ms * MS),
            )
        )


def covered(output: TracedOutput, end_ms: float) -> bool:
    """Whether the segments and their parts have no gap from the begin to then."""
    at = output.start_ns
    for segment in output.segments:
        if segment.start_ns != at or sum(segment.parts.values()) != segment.duration_ns:
            return False
        at = segment.end_ns
    return at == int(end_ms * MS)


def totals(output: TracedOutput) -> dict[str, float]:
    """Milliseconds by part."""
    sums: dict[str, float] = {}
    for segment in output.segments:
        for name, ns in segment.parts.items():
            sums[name] = sums.get(name, 0.0) + ns / MS
    return sums
