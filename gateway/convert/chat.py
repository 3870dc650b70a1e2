"""Chat of the public contract: what it says of tools, and deltas that tell reasoning and calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gateway.convert.conversation import invalid, read_conversation, read_tools
from gateway.convert.events import (
    Response,
    fill_tokens,
    finished_message,
    started_message,
    usage_message,
)
from gateway.convert.requests import read_options
from gateway.generation import Finished, FinishReason, GenerationRequest, Output, Usage
from gateway.live_generation import Generation
from gateway.message_events import Content, Reasoning
from gateway.message_parser import MessageEvent, MessageParser
from gateway.message_request import MessageRequest, tools_of
from gateway.tools.tool import Tool, ToolChoice
from pagewire.v1 import common_pb2, inference_pb2

_MODES = {
    inference_pb2.TOOL_CHOICE_MODE_UNSPECIFIED: ToolChoice.AUTO,
    inference_pb2.TOOL_CHOICE_MODE_NONE: ToolChoice.NONE,
    inference_pb2.TOOL_CHOICE_MODE_AUTO: ToolChoice.AUTO,
    inference_pb2.TOOL_CHOICE_MODE_REQUIRED: ToolChoice.REQUIRED,
}


def chat_request(message: inference_pb2.ChatRequest, timeout_s: float | None) -> GenerationRequest:
    """Read a ChatRequest.

    Raises:
        InvalidRequestError: Names the field.
    """
    prompt = read_conversation(message)
    wanted = _message_request(message)
    if wanted.tool_choice is ToolChoice.NONE:
        # Models that were shown tools call them, whatever they were told.
        prompt = replace(prompt, tools_json="")
    return replace(read_options(message, (prompt,), timeout_s), message=wanted)


class ChatEvents:
    """Implements `events.Events` for Chat."""

    def __init__(self, with_token_ids: bool) -> None:
        self._with_token_ids = with_token_ids
        self._parsers: list[MessageParser] = []

    def started(self, generation: Generation) -> Response:
        self._parsers = [generation.messages.parser() for _ in generation.requests]
        return inference_pb2.ChatResponse(started=started_message(generation))

    def outputs(self, outputs: Iterable[Output]) -> Iterator[Response]:
        for output in outputs:
            parser = self._parsers[output.index]
            response = inference_pb2.ChatResponse()
            delta = response.delta
            delta.index = output.index
            is_news = fill_tokens(delta, output, self._with_token_ids)
            events = parser.push(output.text)
            if output.finished is not None:
                events += parser.finish()
            if _fill_message(delta, events) or is_news:
                yield response
            if output.finished is not None:
                finished = _finished(output.index, output.finished, parser)
                yield inference_pb2.ChatResponse(finished=finished)

    def usage(self, usage: Usage) -> Response:
        return inference_pb2.ChatResponse(usage=usage_message(usage))


def _message_request(message: inference_pb2.ChatRequest) -> MessageRequest:
    tools = read_tools(message.tools)
    names = [each["function"]["name"] for each in tools]
    strict = {each.name for each in message.tools if each.strict}
    if len(set(names)) < len(names):
        raise invalid("tools", "have the same name twice")
    kind = message.tool_choice.WhichOneof("choice")
    if kind == "function_name":
        name = message.tool_choice.function_name
        if name not in names:
            raise invalid("tool_choice.function_name", "must be the name of one of tools")
        choice = ToolChoice.NAMED
        tools = [tools[names.index(name)]]
    else:
        mode = _MODES.get(message.tool_choice.mode)
        if mode is None:
            raise invalid("tool_choice.mode", "is none that this server knows")
        choice = mode if tools else ToolChoice.NONE
        if mode is ToolChoice.REQUIRED and not tools:
            raise invalid("tool_choice.mode", "REQUIRED needs tools to choose from")
    parallel = not message.HasField("parallel_tool_calls") or message.parallel_tool_calls
    return MessageRequest(
        tools=() if choice is ToolChoice.NONE else _with_strict(tools, strict),
        tool_choice=choice,
        parallel_tool_calls=parallel,
    )


def _with_strict(functions: Sequence[dict[str, Any]], strict: set[str]) -> tuple[Tool, ...]:
    return tuple(replace(each, strict=each.name in strict) for each in tools_of(functions))


def _fill_message(delta: inference_pb2.ChatDelta, events: Iterable[MessageEvent]) -> bool:
    """Write events; return whether there was anything in them."""
    for event in events:
        if isinstance(event, Content):
            delta.content += event.text
        elif isinstance(event, Reasoning):
            delta.reasoning += event.text
        elif delta.tool_calls and delta.tool_calls[-1].index == event.index:
            delta.tool_calls[-1].arguments_json += event.arguments
        else:
            delta.tool_calls.add(
                index=event.index, id=event.id, name=event.name, arguments_json=event.arguments
            )
    return bool(delta.content or delta.reasoning or delta.tool_calls)


def _finished(
    index: int, finished: Finished, parser: MessageParser
) -> inference_pb2.GenerationFinished:
    message = finished_message(index, finished)
    if finished.reason is FinishReason.STOP and parser.has_calls:
        message.finish_reason = common_pb2.FINISH_REASON_TOOL_CALLS
    return message
