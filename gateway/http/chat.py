"""`POST /v1/chat/completions`: the body's fields, and the shape of the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.generation import ChatPrompt, Output
from gateway.http.answers import Call, object_head, stop_reason
from gateway.http.chat_message import delta_object, finish_reason, message_object
from gateway.http.chat_tools import read_tools
from gateway.http.conversation import read_conversation
from gateway.http.fields import Fields, invalid
from gateway.http.logprobs import TokenFormat, chat_logprobs, prompt_logprobs
from gateway.http.parameters import (
    read_logprob_token_ids,
    read_request,
    read_stream,
    read_top_logprobs,
)
from gateway.live_generation import Generation
from gateway.message_parser import Message, MessageEvent, MessageParser

# Names that completions does not honour.
_SUPPORTED = (
    "top_logprobs",
    "logprob_token_ids",
    "chat_template",
    "documents",
    "tools",
    "tool_choice",
    "reasoning_effort",
)


def read_chat(fields: Fields) -> Call:
    """Return what the body asks for.

    Raises:
        InvalidRequestError: Names the field.
    """
    tools = read_tools(fields)
    prompt = replace(read_conversation(fields), tools_json=tools.template_json)
    names = ("max_completion_tokens", "max_tokens")
    request = read_request(fields, (prompt,), names, _SUPPORTED)
    message = replace(tools.message, streamed=fields.boolean("stream"))
    request = replace(request, message=message)
    num_top, named = read_top_logprobs(fields), read_logprob_token_ids(fields)
    if named and num_top is None:
        raise invalid("logprob_token_ids", "needs logprobs=true")
    if num_top is not None:
        # The likeliest tokens give way to those that are named.
        asked = {"logprob_token_ids": named} if named else {"logprobs": num_top}
        request = replace(request, sampling={**request.sampling, **asked})
        num_top = len(named) or num_top
    shape = ChatShape(
        num_top_logprobs=num_top,
        num_prompt_logprobs=fields.integer("prompt_logprobs"),
        token_format=TokenFormat(fields.boolean("return_tokens_as_token_ids")),
        return_token_ids=fields.boolean("return_token_ids"),
        echoed=_echoed(prompt) if fields.boolean("echo") else "",
    )
    limit = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    return Call(request, shape, read_stream(fields), {"max_tokens": limit})


@dataclass(slots=True)
class ChatShape:
    """Implements `answers.Shape`."""

    num_top_logprobs: int | None = None
    """Beside each output token, or as many as the request names; None: no logprobs."""
    num_prompt_logprobs: int | None = None
    token_format: TokenFormat = field(default_factory=TokenFormat)
    return_token_ids: bool = False
    echoed: str = ""
    """What every answer begins with, before the model's own text."""
    _parsers: dict[int, MessageParser] = field(default_factory=dict)
    """By index of the output."""

    def first_chunks(self, generation: Generation) -> Iterable[dict[str, Any]]:
        """The role of each choice, and what is echoed."""
        for index in range(len(generation.requests)):
            yield self._chunk(generation, index, {"role": "assistant", "content": ""}) | (
                self._prompt_token_ids(generation) if index == 0 else {}
            )
            if self.echoed:
                yield self._chunk(generation, index, {"content": self.echoed})

    def chunks(self, generation: Generation, output: Output) -> Iterable[dict[str, Any]]:
        token_ids = {"token_ids": output.token_ids} if self.return_token_ids else {}
        parser = self._parser(generation, output)
        delta = delta_object(_read(parser, output))
        if delta or output.logprobs or (self.return_token_ids and output.token_ids):
            logprobs = self._logprobs(output)
            delta = delta or {"content": ""}
            yield self._chunk(generation, output.index, delta, logprobs=logprobs, **token_ids)
        if output.finished is not None:
            yield self._chunk(
                generation,
                output.index,
                {},
                finish_reason=finish_reason(output.finished, parser),
                stop_reason=stop_reason(output),
            )

    def plain_text(self, output: Output) -> str | None:
        if output.finished or self.num_top_logprobs is not None or self.return_token_ids:
            return None
        parser = self._parsers.get(output.index)
        return output.text if parser is not None and parser.shows_all else None

    def text_chunk(self, generation: Generation, index: int, text: str) -> dict[str, Any]:
        return self._chunk(generation, index, {"content": text})

    def usage_chunk(self, generation: Generation) -> dict[str, Any]:
        return self._object(generation, "chat.completion.chunk", [])

    def whole(self, generation: Generation, outputs: list[Output]) -> dict[str, Any]:
        choices = [self._choice(generation, output) for output in outputs]
        whole = self._object(generation, "chat.completion", choices)
        if self.num_prompt_logprobs is not None and outputs[0].prompt_logprobs is not None:
            places = outputs[0].prompt_logprobs
            whole["prompt_logprobs"] = prompt_logprobs(places, self.num_prompt_logprobs)
        return whole | self._prompt_token_ids(generation)

    def _chunk(
        self, generation: Generation, index: int, delta: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return self._object(generation, "chat.completion.chunk", [choice])

    def _choice(self, generation: Generation, output: Output) -> dict[str, Any]:
        parser, message = self._parser(generation, output), Message()
        message.add(_read(parser, output))
        choice = {
            "index": output.index,
            "message": message_object(message, self.echoed, parser.reads_reasoning),
            "logprobs": self._logprobs(output),
            "finish_reason": finish_reason(output.finished, parser),
            "stop_reason": stop_reason(output),
        }
        return choice | ({"token_ids": output.token_ids} if self.return_token_ids else {})

    def _object(
        self, generation: Generation, kind: str, choices: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return object_head(generation, "chatcmpl", kind) | {"choices": choices}

    def _parser(self, generation: Generation, output: Output) -> MessageParser:
        if output.index not in self._parsers:
            self._parsers[output.index] = generation.messages.parser()
        return self._parsers[output.index]

    def _logprobs(self, output: Output) -> dict[str, Any] | None:
        if self.num_top_logprobs is None:
            return None
        return chat_logprobs(output.logprobs, self.num_top_logprobs, self.token_format)

    def _prompt_token_ids(self, generation: Generation) -> dict[str, Any]:
        if not self.return_token_ids:
            return {}
        return {"prompt_token_ids": list(generation.prompt_token_ids(0))}


def _read(parser: MessageParser, output: Output) -> list[MessageEvent]:
    events = parser.push(output.text)
    return events if output.finished is None else events + parser.finish()


def _echoed(prompt: ChatPrompt) -> str:
    """Return what the assistant said last, where the conversation ends with it."""
    last = prompt.messages[-1]
    return last.content or "" if last.role == "assistant" else ""
