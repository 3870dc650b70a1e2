"""The assistant's message as chat completions have it: deltas of a stream, and the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.generation import Finished, FinishReason
from gateway.message_events import Content, Reasoning
from gateway.message_parser import Message, MessageEvent, MessageParser, ToolCallDelta


def delta_object(events: Iterable[MessageEvent]) -> dict[str, Any]:
    """Return what is new, as one `delta`; {}: nothing is."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, Content):
            delta["content"] = delta.get("content", "") + event.text
        elif isinstance(event, Reasoning):
            delta |= _reasoning(delta.get("reasoning", "") + event.text)
        else:
            _add_call(calls, event)
    return delta | ({"tool_calls": list(calls.values())} if calls else {})


def message_object(message: Message, echoed: str, reads_reasoning: bool) -> dict[str, Any]:
    """Return the whole message.

    Args:
        message: What the output adds up to.
        echoed: Content that stands before it.
        reads_reasoning: Whether reasoning is told apart, so that clients look for it.
    """
    has_more = bool(message.tool_calls or message.reasoning)
    content = echoed + message.content
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not has_more else None,
        "refusal": None,
    }
    if reads_reasoning:
        answer |= _reasoning(message.reasoning or None)
    if message.tool_calls:
        answer["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return answer


def finish_reason(finished: Finished | None, parser: MessageParser) -> str | None:
    """Return why an output ended; calls go before a plain end."""
    if finished is None:
        return None
    is_call = finished.reason is FinishReason.STOP and parser.has_calls
    return "tool_calls" if is_call else finished.reason


def _reasoning(text: str | None) -> dict[str, Any]:
    """Under the names that clients of vLLM and of others look for."""
    return {"reasoning": text, "reasoning_content": text}


def _add_call(calls: dict[int, dict[str, Any]], event: ToolCallDelta) -> None:
    call = calls.setdefault(event.index, {"index": event.index})
    function = call.setdefault("function", {})
    if event.id:
        call |= {"id": event.id, "type": "function"}
        function["name"] = event.name
    function["arguments"] = function.get("arguments", "") + event.arguments
