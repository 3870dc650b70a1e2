"""The seam between an output's text and the assistant's message: content, reasoning, tool calls.

One parser an output; streamed and whole answers use it alike, and so does every front door. The
text may come in any pieces: what the events add up to is the same. It knows no HTTP and no
protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gateway.message_events import CallStart, Content, Reasoning, ToolEvent
from gateway.reasoning.think_tags import ThinkTagSplitter
from gateway.tools.incremental import ToolParser


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call. The first one of its index has the id and the name."""

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


MessageEvent = Content | Reasoning | ToolCallDelta


@dataclass(slots=True)
class ToolCall:
    """A whole call."""

    id: str
    name: str
    arguments: str
    """JSON text; incomplete if the output was cut off, or the model wrote it wrong."""


@dataclass(slots=True)
class Message:
    """What events add up to."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[MessageEvent]) -> None:
        for event in events:
            if isinstance(event, Content):
                self.content += event.text
            elif isinstance(event, Reasoning):
                self.reasoning += event.text
            elif event.index < len(self.tool_calls):
                self.tool_calls[event.index].arguments += event.arguments
            else:
                self.tool_calls.append(ToolCall(event.id, event.name, event.arguments))


class MessageParser:
    """One output's text, first split from its reasoning, then read for calls."""

    def __init__(
        self,
        splitter: ThinkTagSplitter | None = None,
        tools: ToolParser | None = None,
        *,
        new_id: Callable[[], str] = str,
        max_calls: int | None = None,
        shows_reasoning: bool = True,
        on_read: Callable[[bool], object] = bool,
    ) -> None:
        """Prepare for an output.

        Args:
            splitter: None: there is no reasoning.
            tools: None: there are no calls.
            new_id: Makes the id of a call.
            max_calls: Later calls are left out; None: all are kept.
            shows_reasoning: Whether reasoning gives events.
            on_read: Told at the end whether there was a call, where `tools` read for some.
        """
        self._splitter = splitter
        self._tools = tools
        self._new_id = new_id
        self._max_calls = max_calls
        self._shows_reasoning = shows_reasoning
        self._on_read = on_read
        self.num_calls = 0
        """Begun so far, those that are left out included."""

    @property
    def reads_reasoning(self) -> bool:
        """Whether reasoning gives events, where there is any."""
        return self._splitter is not None and self._shows_reasoning

    @property
    def shows_all(self) -> bool:
        """Whether all text is content, so that it needs no reading."""
        return self._splitter is None and self._tools is None

    @property
    def has_calls(self) -> bool:
        return self.num_calls > 0

    def push(self, text: str) -> list[MessageEvent]:
        """Read the next piece of the output; return what is known by it."""
        split = self._splitter.push(text) if self._splitter else _content(text)
        return self._read(split)

    def finish(self) -> list[MessageEvent]:
        """Return what was held back; the output is over."""
        events = self._read(self._splitter.finish()) if self._splitter else []
        if self._tools is not None:
            events += self._number(self._tools.finish())
            self._on_read(self.has_calls)
        return events

    def _read(self, split: Iterable[Content | Reasoning]) -> list[MessageEvent]:
        events: list[MessageEvent] = []
        for event in split:
            if isinstance(event, Reasoning):
                events += [event] if self._shows_reasoning else []
            else:
                events += self._number(self._tools.push(event.text)) if self._tools else [event]
        return events

    def _number(self, events: Iterable[ToolEvent]) -> list[MessageEvent]:
        numbered: list[MessageEvent] = []
        for event in events:
            if isinstance(event, Content):
                numbered.append(event)
                continue
            self.num_calls += isinstance(event, CallStart)
            if self._max_calls is not None and self.num_calls > self._max_calls:
                continue
            index = self.num_calls - 1
            if isinstance(event, CallStart):
                numbered.append(ToolCallDelta(index, id=self._new_id(), name=event.name))
            else:
                numbered.append(ToolCallDelta(index, arguments=event.text))
        return numbered


def _content(text: str) -> list[Content]:
    return [Content(text)] if text else []
