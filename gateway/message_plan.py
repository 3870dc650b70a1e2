"""From what a chat request says of its message to what the engine is asked, and how it is read.

Forced calls become structured outputs; with reasoning, a form begins behind it. Owns the choice of
parsers; the parsers themselves, HTTP and protobuf are not known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gateway.generation import ChatPrompt, GenerationRequest
from gateway.message_config import MessageConfig
from gateway.message_parser import MessageParser
from gateway.message_request import MessageRequest
from gateway.reasoning.registry import NONE, REASONING_STYLES
from gateway.reasoning.think_tags import (
    CLOSE,
    OPEN,
    Begin,
    ThinkTagSplitter,
    begin_of,
    begin_of_continued,
)
from gateway.tools.call_schema import (
    SchemaTooDeepError,
    arguments_schema,
    calls_schema,
)
from gateway.tools.incremental import ToolParser
from gateway.tools.json_calls import JsonCallsParser, NamedCallParser
from gateway.tools.registry import ToolFormat, tool_format
from gateway.tools.tool import ToolChoice
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, StructuredOutputs

NUM_TAIL_TOKENS = 16
"""Of a prompt: as many as a template needs to open or close the reasoning."""


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Makes a parser for each output of one request."""

    begin: Begin | None = None
    """Of the outputs; None: there is no reasoning to tell apart."""
    make_tools: Callable[[], ToolParser] | None = None
    new_id: Callable[[], str] = str
    max_calls: int | None = None
    shows_reasoning: bool = True
    on_read: Callable[[bool], object] = bool
    """Told of each output that was read for calls whether there was one."""

    def parser(self) -> MessageParser:
        """Return a parser for one more output."""
        return MessageParser(
            ThinkTagSplitter(self.begin) if self.begin is not None else None,
            self.make_tools() if self.make_tools is not None else None,
            new_id=self.new_id,
            max_calls=self.max_calls,
            shows_reasoning=self.shows_reasoning,
            on_read=self.on_read,
        )

    def form_behind_reasoning(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with their form, if any, applied to the answer alone."""
        form = params.structured_outputs
        if form is None or self.begin in (None, Begin.ANSWER):
            return params
        start = OPEN if self.begin is Begin.EITHER else ""
        form = replace(form, reasoning_start=start, reasoning_end=CLOSE)
        return replace(params, structured_outputs=form)


class MessagePlanner:
    """Knows the server's parsers."""

    def __init__(self, config: MessageConfig) -> None:
        self._config = config

    @property
    def reads_reasoning(self) -> bool:
        """Whether the end of a chat's prompt is needed."""
        return self._config.reasoning_parser != NONE

    def prepare(self, request: GenerationRequest, shown_format: str) -> GenerationRequest:
        """Return the request with what its message demands of the engine.

        Args:
            request: As it came.
            shown_format: In which the model calls, as the tokenizer service knows it.

        Raises:
            InvalidRequestError: Its tools cannot be used in this way.
        """
        message = request.message
        if message is None or message.tool_choice is ToolChoice.NONE:
            return request
        if request.sampling.get("structured_outputs") is not None:
            raise _invalid(
                "tools",
                "the form of the answer excludes calls: leave response_format and"
                " structured_outputs out, or set tool_choice to none",
            )
        if message.tool_choice is ToolChoice.AUTO:
            if not self._config.enable_auto_tool_choice:
                raise _invalid(
                    "tool_choice",
                    "auto is off on this server (--enable-auto-tool-choice); use none, required or"
                    " the name of a tool",
                )
            # Some models mark calls with special tokens.
            more: dict[str, Any] = {"skip_special_tokens": False}
            form = self._form_of_calls(message, shown_format)
            if form is not None:
                more["structured_outputs"] = form
            return replace(request, sampling={**more, **request.sampling})
        schema = StructuredOutputs(json_schema=_forced_schema(message))
        return replace(request, sampling={**request.sampling, "structured_outputs": schema})

    def _form_of_calls(
        self, message: MessageRequest, shown_format: str
    ) -> StructuredOutputs | None:
        """Return the form of text whose calls are as the request demands; None: any will do."""
        is_strict = any(tool.strict for tool in message.tools)
        form = tool_format(self._config.tool_call_parser, shown_format).form
        if form is not None and (is_strict or message.only_these):
            return StructuredOutputs(structural_tag=json.dumps(form(message.tools)))
        if is_strict:
            raise _invalid(
                "tools",
                "strict cannot be kept in this model's format of calls where the model chooses"
                " (tool_choice auto): leave strict out, or use required or the name of a tool",
            )
        return None

    def reader(
        self, request: GenerationRequest, shown_format: str, prompt_tail: str
    ) -> MessageReader:
        """Return how outputs of the request are read.

        Args:
            request: Of a chat, or of anything else, which is all content.
            shown_format: In which the model calls, as the tokenizer service knows it.
            prompt_tail: The text at the end of the prompt.
        """
        message = request.message
        if message is None:
            return MessageReader()
        form = tool_format(self._config.tool_call_parser, shown_format)
        return MessageReader(
            begin=self._begin(request, prompt_tail),
            make_tools=_tool_parsers(message, form),
            new_id=form.new_id,
            max_calls=None if message.parallel_tool_calls else 1,
            shows_reasoning=message.include_reasoning,
        )

    def _begin(self, request: GenerationRequest, prompt_tail: str) -> Begin | None:
        if not self.reads_reasoning:
            return None
        prompt = request.prompts[0]
        if isinstance(prompt, ChatPrompt) and prompt.continue_final_message:
            return begin_of_continued(prompt.messages[-1].content or "")
        return begin_of(prompt_tail, REASONING_STYLES[self._config.reasoning_parser])


def _tool_parsers(message: MessageRequest, form: ToolFormat) -> Callable[[], ToolParser] | None:
    names = [tool.name for tool in message.tools]
    makers: dict[ToolChoice, Callable[[], ToolParser]] = {
        ToolChoice.AUTO: lambda: form.make_parser(names),
        ToolChoice.REQUIRED: lambda: JsonCallsParser(names),
        ToolChoice.NAMED: lambda: NamedCallParser(names[0]),
    }
    return makers.get(message.tool_choice)


def _forced_schema(message: MessageRequest) -> str:
    try:
        if message.tool_choice is ToolChoice.NAMED:
            schema = arguments_schema(message.tools[0])
        else:
            schema = calls_schema(message.tools, message.parallel_tool_calls)
        # ASCII, so that a lone surrogate inside stays an escape.
        return json.dumps(schema)
    except (SchemaTooDeepError, RecursionError):
        raise _invalid("tools", "the parameters of a tool are nested too deeply") from None


def _invalid(field: str, rule: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {rule}", reason="INVALID_PARAMETER", field=field)
