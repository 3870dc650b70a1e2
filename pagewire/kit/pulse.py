"""Both directions of one stream's heartbeats, as one side sees them.

Each heartbeat says which of the peer's came last and how long ago, so that the peer knows the round
trip: from its event loop to ours and back, through whatever is between. It also carries figures of
the process, if the peer has a use for them. It sends nothing: the owner of the stream does.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from pagewire.v1 import common_pb2

Heartbeat: TypeAlias = common_pb2.Heartbeat
ProcessFigures: TypeAlias = common_pb2.ProcessFigures

_MAX_UNANSWERED = 8
"""An echo that comes later says nothing that is worth to know."""


def no_figures() -> ProcessFigures | None:
    """Return none: of a process whose figures its peer has no use for."""
    return None


class Pulse:
    """Used from one event loop.

    Attributes:
        peer: What the peer said last of its process; None: nothing.
        round_trip_ns: Of our last heartbeat that was echoed; 0: not known yet.
    """

    def __init__(
        self,
        process: Callable[[], ProcessFigures | None] = no_figures,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begin with nothing sent and nothing heard.

        Args:
            process: Gives what heartbeats say of this process.
            clock_ns: Nanoseconds, monotonic.
        """
        self.peer: ProcessFigures | None = None
        self.round_trip_ns = 0
        self._process = process
        self._clock_ns = clock_ns
        self._num_sent = 0
        self._sent_ns = OrderedDict[int, int]()
        self._heard_sequence = 0
        self._heard_ns = 0

    def beat(self) -> Heartbeat:
        """Return the next heartbeat; send it at once."""
        self._num_sent += 1
        now_ns = self._clock_ns()
        self._sent_ns[self._num_sent] = now_ns
        if len(self._sent_ns) > _MAX_UNANSWERED:
            self._sent_ns.popitem(last=False)
        beat = Heartbeat(sequence=self._num_sent, process=self._process())
        if self._heard_sequence:
            beat.echo_sequence = self._heard_sequence
            beat.echo_age_ns = now_ns - self._heard_ns
        return beat

    def take(self, beat: Heartbeat) -> None:
        """Take in a heartbeat of the peer, when it came."""
        now_ns = self._clock_ns()
        self._heard_sequence, self._heard_ns = beat.sequence, now_ns
        sent_ns = self._sent_ns.get(beat.echo_sequence)
        if sent_ns is not None:
            self.round_trip_ns = max(0, now_ns - sent_ns - beat.echo_age_ns)
        if beat.HasField("process"):
            self.peer = beat.process
