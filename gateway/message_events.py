"""What a model's text turns out to be, piece by piece: the words of the parsers of output.

Pure data, free of HTTP and protobuf. Parsers of `tools` and `reasoning` give these events in the
order of the text; `message_parser` joins them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote for itself, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; what follows up to the next start belongs to it."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the call's arguments, which together are a JSON object as text."""

    text: str


ToolEvent = Content | CallStart | CallArguments
ReasoningEvent = Content | Reasoning
