"""One output's way through an engine: waiting, prefill chunks, decode steps, what interrupted them.

It is told what frames say of the output, in their order, and cuts the time since it was sent to the
engine into segments without a gap. Steps are folded into few segments, so that a long output takes
no more room than a short one. Told per token, so `advanced` does next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns

from gateway.trace.parts import STEP_PARTS, fit, settle
from gateway.trace.step_ledger import NOWHERE, Moment

MAX_SEGMENTS = 32
_FIRST_FOLD = 16
"""Decode steps of a segment before anything was folded."""
# With pipeline stages a request is in one of several steps under way.
_MAX_STRIDE = 8

ADMISSION, QUEUE, WAIT, PREEMPTED, RECOVERY = "admission", "queue", "wait", "preempted", "recovery"


@dataclass(slots=True)
class Segment:
    """A stretch of one kind."""

    kind: str
    """prefill, decode, or the one part that it has."""
    start_ns: int
    end_ns: int
    parts: dict[str, int]
    """Nanoseconds by name; together they are the stretch."""
    num_steps: int = 0
    num_tokens: int = 0

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    def extend(self, later: Segment) -> None:
        """Take in the segment that follows this one."""
        if later.kind != self.kind and later.duration_ns > self.duration_ns:
            self.kind = later.kind
        self.end_ns = later.end_ns
        for name, ns in later.parts.items():
            self.parts[name] = self.parts.get(name, 0) + ns
        self.num_steps += later.num_steps
        self.num_tokens += later.num_tokens


class UntracedOutput:
    """Takes note of nothing."""

    __slots__ = ()

    def joined(self, replica: str) -> None:
        """It is sent to an engine, the first one or another."""

    def admitted(self) -> None:
        """The first engine has taken it."""

    def scheduled(self, queue_ns: int) -> None:
        """It left the engine's queue for the first time, in which it was for so long."""

    def preempted(self) -> None:
        """It has lost its blocks and waits."""

    def recovering(self) -> None:
        """Its engine or that engine's worker is lost."""

    def prefilled(self, moment: Moment, num_tokens: int) -> None:
        """A step computed so many tokens that were known."""

    def advanced(self, moment: Moment, num_tokens: int) -> None:
        """A frame brought new tokens."""

    def detokenized(self, service_ns: int) -> None:
        """Its text is complete; the tokenizer took so long for the last of it."""


UNTRACED = UntracedOutput()


class TracedOutput(UntracedOutput):
    """Invariant: `segments` and the open one have no gap from `start_ns` to the last moment."""

    __slots__ = (
        "_admitted_ns",
        "_begin",
        "_end_ns",
        "_fold",
        "_fold_at",
        "_gap",
        "_last",
        "_num_tokens",
        "_queue_ns",
        "detokenize_ns",
        "num_preemptions",
        "num_recoveries",
        "replicas",
        "segments",
        "start_ns",
        "text_end_ns",
    )

    def __init__(self) -> None:
        """Begin; `begin` says when that was."""
        self.start_ns = self._end_ns = monotonic_ns()
        self.segments: list[Segment] = []
        self.replicas: list[str] = []
        self.num_preemptions = 0
        self.num_recoveries = 0
        self.text_end_ns: int | None = None
        """When its text was complete."""
        self.detokenize_ns = 0
        """What the tokenizer took for the last of it."""
        self._admitted_ns: int | None = None
        self._queue_ns = 0
        self._gap: str | None = ADMISSION
        """What it is called that no step is computed for it; None: steps are."""
        self._begin = self._last = NOWHERE
        """Where the open segment begins, and how far it goes."""
        self._num_tokens = 0
        """Of the open segment."""
        self._fold = _FIRST_FOLD
        self._fold_at = 0

    def begin(self, now_ns: int) -> None:
        """Count from now on; nothing has come yet."""
        self.start_ns = self._end_ns = now_ns

    @property
    def engine_end_ns(self) -> int:
        """When the last was heard of it from an engine."""
        return self._end_ns

    def joined(self, replica: str) -> None:
        if self.replicas:
            self.recovering()
        self.replicas.append(replica)
        del self.replicas[1:-1]  # the first and the last one, however many there were

    def admitted(self) -> None:
        self._admitted_ns = monotonic_ns()

    def scheduled(self, queue_ns: int) -> None:
        self._queue_ns = queue_ns

    def preempted(self) -> None:
        self.num_preemptions += 1
        if self._gap is None:
            self._close_open()
            self._gap = PREEMPTED

    def recovering(self) -> None:
        if self._gap == RECOVERY:
            return
        self.num_recoveries += 1
        self._close_open()
        self._wait_in_gap(monotonic_ns())
        self._gap = RECOVERY

    def prefilled(self, moment: Moment, num_tokens: int) -> None:
        if self._gap is None and moment.number == self._last.number:
            # A further one of the steps that merged in this frame.
            self.segments[-1].num_steps += 1
            self.segments[-1].num_tokens += num_tokens
        else:
            self._take_step("prefill", moment, num_tokens)

    def advanced(self, moment: Moment, num_tokens: int) -> None:
        stride = moment.number - self._last.number
        if stride > _MAX_STRIDE or self._gap is not None:
            self._take_step("decode", moment, num_tokens)
            return
        self._num_tokens += num_tokens
        if stride:
            self._last = moment
            if moment.number >= self._fold_at:
                self._close_open()

    def detokenized(self, service_ns: int) -> None:
        self.text_end_ns = monotonic_ns()
        self.detokenize_ns = service_ns

    def close(self, now_ns: int) -> None:
        """End the segments; what an output waits for that never came is a segment too."""
        self._close_open()
        if self.text_end_ns is None:
            self._gap = self._gap or WAIT
            self._wait_in_gap(now_ns)

    def _take_step(self, kind: str, moment: Moment, num_tokens: int) -> None:
        """Add a segment for one step, and one for what was before it if that was no step."""
        self._close_open()
        span_ns = moment.now_ns - self._end_ns
        if self._gap is None and moment.number - self._last.number <= _MAX_STRIDE:
            parts = list(map(int.__sub__, moment.totals, self._last.totals))
        else:
            parts = fit(moment.step, span_ns)
            waited_ns, parts[STEP_PARTS.index("wait")] = parts[STEP_PARTS.index("wait")], 0
            parts[-1] = self._wait(waited_ns, self._gap or WAIT)
        self._add(Segment(kind, self._end_ns, moment.now_ns, settle(parts), 1, num_tokens))
        self._gap = None
        self._open(moment)

    def _wait(self, waited_ns: int, gap: str) -> int:
        """Add what was before a step.

        Returns:
            What of it was the way from the gateway to the engine and back.
        """
        if gap != ADMISSION:
            self._wait_until(self._end_ns + waited_ns, gap)
            return 0
        # Until its first step. The frame that told of its admission may have come late.
        queue_ns = min(self._queue_ns, waited_ns)
        admission_ns = (self._admitted_ns or self._end_ns) - self._end_ns
        admission_ns = min(admission_ns, waited_ns - queue_ns)
        self._wait_until(self._end_ns + admission_ns, ADMISSION)
        self._wait_until(self._end_ns + queue_ns, QUEUE)
        return waited_ns - queue_ns - admission_ns

    def _wait_in_gap(self, end_ns: int) -> None:
        """Add what no step has come after."""
        if self._gap == ADMISSION and self._admitted_ns is not None:
            self._wait_until(self._admitted_ns, ADMISSION)
            self._wait_until(end_ns, QUEUE)
        elif self._gap is not None:
            self._wait_until(end_ns, self._gap)

    def _wait_until(self, end_ns: int, gap: str) -> None:
        if end_ns > self._end_ns:
            self._add(Segment(gap, self._end_ns, end_ns, {gap: end_ns - self._end_ns}))

    def _open(self, moment: Moment) -> None:
        self._begin = self._last = moment
        self._num_tokens = 0
        self._fold_at = moment.number + self._fold

    def _close_open(self) -> None:
        """Make a segment of the steps since the last one."""
        begin, last = self._begin, self._last
        if last.number > begin.number:
            parts = settle(list(map(int.__sub__, last.totals, begin.totals)))
            num_steps = last.number - begin.number
            span = begin.now_ns, last.now_ns
            self._add(Segment("decode", *span, parts, num_steps, self._num_tokens))
        self._open(last)

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._end_ns = segment.end_ns
        if len(self.segments) > MAX_SEGMENTS:
            self._fold *= 2
            self.segments = folded(self.segments, MAX_SEGMENTS)


def folded(segments: Sequence[Segment], max_segments: int) -> list[Segment]:
    """Return neighbours of one kind joined two by two; if too many are left, all neighbours."""
    kept: list[Segment] = []
    num_joined = 0
    for segment in segments:
        if num_joined == 0 and kept and kept[-1].kind == segment.kind:
            kept[-1].extend(segment)
            num_joined = 1
        else:
            kept.append(segment)
            num_joined = 0
    if len(kept) <= max_segments:
        return kept
    for first, second in zip(kept[::2], kept[1::2], strict=False):
        first.extend(second)
    return kept[::2]
