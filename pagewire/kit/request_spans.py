"""Spans of requests that one stream carries, from the frame that brings each to its end."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from pagewire.kit import context
from pagewire.kit.spans import Attributes, Spans


@dataclass(slots=True)
class _Begun:
    traceparent: str
    start_ns: int
    attributes: dict[str, str | int | float | bool] = field(default_factory=dict)


class RequestSpans:
    """Has as many entries as there are live requests of sampled traces. Never raises."""

    def __init__(self, spans: Spans, name: str) -> None:
        """Prepare.

        Args:
            spans: Where they go.
            name: Of each.
        """
        self._spans = spans
        self._name = name
        self._begun: dict[Hashable, _Begun] = {}

    def begin(self, key: Hashable, traceparent: str, request_id: str) -> None:
        """Begin the span of a request; one without a valid traceparent belongs to no trace."""
        if self._spans.is_on and context.is_traceparent(traceparent):
            attributes: Attributes = {"gen_ai.request.id": request_id}
            self._begun[key] = _Begun(traceparent, time.time_ns(), dict(attributes))

    def note(self, key: Hashable, attributes: Attributes) -> None:
        """Add what is known of it by now."""
        begun = self._begun.get(key)
        if begun is not None:
            begun.attributes |= attributes

    def end(self, key: Hashable) -> None:
        """End it; no-op if it has not begun."""
        begun = self._begun.pop(key, None)
        if begun is not None:
            now_ns = time.time_ns()
            self._spans.record(
                self._name, begun.traceparent, begun.start_ns, now_ns, begun.attributes
            )

    def end_all(self) -> None:
        """End those that are left, with the stream."""
        for key in list(self._begun):
            self.end(key)
