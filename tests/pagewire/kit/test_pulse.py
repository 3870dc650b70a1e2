"""Round trips between two clocks that do not agree, and what heartbeats bring along."""

from __future__ import annotations

from pagewire.kit.pulse import Heartbeat, Pulse
from pagewire.v1 import common_pb2


class Side:
    """One end, with a clock of its own."""

    def __init__(self, now_ns: int, name: str = "") -> None:
        self.now_ns = now_ns
        figures = common_pb2.ProcessFigures(version=name) if name else None
        self.pulse = Pulse(lambda: figures, clock_ns=lambda: self.now_ns)


def test_the_round_trip_leaves_out_how_long_the_peer_kept_the_heartbeat() -> None:
    ours, theirs = Side(1_000), Side(500_000)
    beat = ours.pulse.beat()
    theirs.pulse.take(beat)
    theirs.now_ns += 2_000_000
    answer = theirs.pulse.beat()
    assert (answer.echo_sequence, answer.echo_age_ns) == (1, 2_000_000)
    ours.now_ns += 2_000_300
    ours.pulse.take(answer)
    assert ours.pulse.round_trip_ns == 300
    assert theirs.pulse.round_trip_ns == 0, "nothing of theirs was echoed yet"


def test_heartbeats_are_numbered_and_echo_nothing_before_one_came() -> None:
    pulse = Side(1).pulse
    beats = [pulse.beat(), pulse.beat()]
    assert [(beat.sequence, beat.echo_sequence) for beat in beats] == [(1, 0), (2, 0)]


def test_an_echo_of_what_was_not_sent_or_long_ago_says_nothing() -> None:
    side = Side(1)
    for _ in range(100):
        side.pulse.beat()
    for sequence in (0, 1, 101, 2**63):
        side.pulse.take(Heartbeat(sequence=1, echo_sequence=sequence))
        assert side.pulse.round_trip_ns == 0
    side.now_ns = 51
    side.pulse.take(Heartbeat(sequence=2, echo_sequence=100))
    assert side.pulse.round_trip_ns == 50


def test_a_peer_that_says_it_kept_it_longer_than_it_was_away_gives_no_negative_time() -> None:
    side = Side(1)
    side.pulse.beat()
    side.pulse.take(Heartbeat(sequence=1, echo_sequence=1, echo_age_ns=10**12))
    assert side.pulse.round_trip_ns == 0


def test_figures_travel_and_stay_until_others_come() -> None:
    ours, theirs = Side(1), Side(1, "worker")
    ours.pulse.take(theirs.pulse.beat())
    assert ours.pulse.peer is not None and ours.pulse.peer.version == "worker"
    ours.pulse.take(Heartbeat(sequence=2))
    assert ours.pulse.peer.version == "worker"
    assert not ours.pulse.beat().HasField("process")
