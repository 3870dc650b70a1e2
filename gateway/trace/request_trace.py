"""One request's way through the gateway, from its first byte here to the last one written.

`mark` ends a part at the moment it is called, so parts follow each other without a gap; while an
engine works, the outputs have traces of their own. The trace at hand is found through a context
variable, as tasks that work for a request inherit it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic_ns, time_ns

from gateway.trace.output_trace import UNTRACED, Segment, TracedOutput, UntracedOutput
from pagewire.kit.errors import PagewireError
from pagewire.kit.spans import OpenSpan

MAX_DETAILED_OUTPUTS = 8
"""Outputs whose segments are kept, besides those of the one that ended last."""
# About what Python's objects take.
_TRACE_BYTES = 4096
_SEGMENT_BYTES = 768
_FOLLOWING = {"receive": "parse", "parse": "tokenize", "tokenize": "dispatch"}
"""By part: the one that is under way when it has ended."""

_current: ContextVar[RequestTrace | None] = ContextVar("gateway_trace", default=None)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the time of a request."""

    name: str
    start_ns: int
    duration_ns: int


class RequestTrace:
    """The trace of one call. It is of interest once a generation has begun: `is_generation`."""

    def __init__(self, request_id: str, *, with_outputs: bool) -> None:
        """Begin now.

        Args:
            request_id: Of the call.
            with_outputs: Follow the outputs through the engines too.
        """
        self.request_id = request_id
        self.client = ""
        """Name of the client's key; known at the end."""
        self.created_ns = time_ns()
        """Unix time of `start_ns`."""
        self.start_ns = monotonic_ns()
        self.end_ns: int | None = None
        self.spans: list[Span] = []
        self.outputs: list[TracedOutput] = []
        self.is_generation = False
        self.first_output_ns: int | None = None
        """When the client's task had the first output in hand."""
        self.facts: dict[str, object] = {}
        """What is known of the request besides times: model, token counts, and so on."""
        self.finish_reasons: dict[str, int] = {}
        """How many outputs ended so."""
        self.span = OpenSpan()
        """Of OpenTelemetry, which those of other services hang on."""
        self.error = ""
        """Why it failed, machine-readable."""
        self.follows_outputs = with_outputs
        self._marked_ns = self.start_ns
        self._under_way = "parse"
        self._tokenizer_ns = 0
        self._taken_ns: int | None = None

    @contextmanager
    def generating(self, facts: Callable[[], Mapping[str, object]]) -> Iterator[None]:
        """Follow what the block does for a generation.

        Args:
            facts: Says at the end what is known of it.
        """
        self.is_generation = True
        self.mark("parse")
        try:
            yield
        except BaseException as exc:
            self.failed(exc)
            raise
        finally:
            self.facts |= facts()

    def failed(self, exc: BaseException) -> None:
        """Note why the request fails; the first reason stays."""
        if isinstance(exc, asyncio.CancelledError | GeneratorExit):
            reason = "CANCELLED"
        else:
            reason = (exc.reason if isinstance(exc, PagewireError) else "") or "INTERNAL"
        self.error = self.error or reason

    def mark(self, name: str, wire: str = "") -> None:
        """End the part `name`, which began with the end of the part before.

        Args:
            name: Of the part.
            wire: Name of what is left of it beside what the tokenizer says that it took.
        """
        now_ns = monotonic_ns()
        served_ns = self._marked_ns + self._tokenizer_ns if wire else now_ns
        self._add(name, now_ns, served_ns, wire)
        self._tokenizer_ns = 0
        self._under_way = _FOLLOWING.get(name, "wait")

    def tokenizer_took(self, service_ns: int) -> None:
        """Note what a call to the tokenizer took there."""
        self._tokenizer_ns += service_ns

    def dispatched(self) -> None:
        """The outputs are on their way to engines: their parts begin."""
        self.mark("dispatch")
        for output in self.outputs:
            output.begin(self._marked_ns)

    def output(self) -> UntracedOutput:
        """Return the trace of a further output."""
        if not self.follows_outputs:
            return UNTRACED
        output = TracedOutput()
        self.outputs.append(output)
        return output

    def took_outputs(self) -> None:
        """Outputs have come to the client's task."""
        if self.first_output_ns is None:
            self.first_output_ns = monotonic_ns()

    def took_end(self, reason: str) -> None:
        """One of the outputs has ended."""
        name = str(reason)
        self.finish_reasons[name] = self.finish_reasons.get(name, 0) + 1

    def took_all(self) -> None:
        """The last output has come to the client's task."""
        self._taken_ns = monotonic_ns()

    def close(self) -> None:
        """End the trace; what was under way is its last part."""
        last_part = self._under_way
        self.end_ns = now_ns = monotonic_ns()
        for output in self.outputs:
            output.close(now_ns)
        if (last := self.last_output) is not None:
            self._add("", last.engine_end_ns)
            if last.text_end_ns is not None:
                self._close_text(last, last.text_end_ns)
            last_part = "deliver" if self._taken_ns is None else "write"
        self._add(last_part, now_ns)
        for each in self.outputs[MAX_DETAILED_OUTPUTS:]:
            if each is not last:
                each.segments = []

    @property
    def duration_ns(self) -> int:
        """From its begin to its end; 0 before that."""
        return 0 if self.end_ns is None else self.end_ns - self.start_ns

    @property
    def num_bytes(self) -> int:
        """About what it takes."""
        num_segments = sum(1 + len(output.segments) for output in self.outputs)
        return _TRACE_BYTES + _SEGMENT_BYTES * (len(self.spans) + num_segments)

    @property
    def last_output(self) -> TracedOutput | None:
        """The output that ended last: what was on the way until then kept the request."""
        return max(self.outputs, key=lambda each: each.text_end_ns or 2**63, default=None)

    @property
    def segments(self) -> list[Segment]:
        """Those of `last_output`."""
        return [] if self.last_output is None else self.last_output.segments

    def _close_text(self, output: TracedOutput, text_end_ns: int) -> None:
        served_ns = self._marked_ns + output.detokenize_ns
        self._add("detokenize", text_end_ns, served_ns, "detokenize_wire")
        if self._taken_ns is not None:
            self._add("deliver", self._taken_ns)

    def _add(self, name: str, end_ns: int, served_ns: int | None = None, wire: str = "") -> None:
        """Go on to `end_ns`; nameless time is somebody else's, and what is before counts as none.

        Args:
            name: Of the part.
            end_ns: Where it ends.
            served_ns: Where the part called `wire` begins; None: there is none.
            wire: Name of what follows up to the end.
        """
        start_ns, end_ns = self._marked_ns, max(end_ns, self._marked_ns)
        middle_ns = end_ns if served_ns is None else min(served_ns, end_ns)
        self._marked_ns = end_ns
        for part, begin_ns, stop_ns in ((name, start_ns, middle_ns), (wire, middle_ns, end_ns)):
            if part and stop_ns > begin_ns:
                self.spans.append(Span(part, begin_ns, stop_ns - begin_ns))


def current() -> RequestTrace:
    """Return the trace of the call at hand; without one, one that nobody keeps."""
    return _current.get() or RequestTrace("", with_outputs=False)


@contextmanager
def bound(trace: RequestTrace) -> Iterator[None]:
    """Make it the trace at hand for the block, in this task and those it starts."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)
