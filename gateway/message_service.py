"""What is read of messages with the tokenizer service's help: the prompt's end, tags as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gateway.generation import GenerationRequest
from gateway.live_generation import Generation
from gateway.message_config import MessageConfig
from gateway.message_plan import NUM_TAIL_TOKENS, MessagePlanner
from gateway.message_request import MessageRequest
from gateway.metrics import GatewayMetrics
from gateway.reasoning.think_tags import CLOSE, OPEN
from gateway.reasoning.thinking_budget import ThinkingTags, with_thinking_budget
from gateway.reasoning.token_counter import ReasoningTokenCounter
from gateway.tokenizer_client import TokenizerClient
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams


class MessageService:
    """Used from one event loop."""

    def __init__(
        self, config: MessageConfig, tokenizer: TokenizerClient, metrics: GatewayMetrics
    ) -> None:
        self._planner = MessagePlanner(config)
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._tags: tuple[str, ThinkingTags | None] | None = None
        """Of the tokenizer with this fingerprint; None where it cannot spell them."""

    def prepare(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with what its message demands of the engine.

        Raises:
            InvalidRequestError: Its tools cannot be used in this way.
        """
        return self._planner.prepare(request, self._shown_format)

    async def attach(
        self, generation: Generation, request: GenerationRequest, rows: Sequence[Sequence[int]]
    ) -> None:
        """Tell the generation how its outputs are read.

        Args:
            generation: Before its outputs come.
            request: As prepared.
            rows: The token ids of its prompts.
        """
        if request.message is None:
            return
        tail, tags = "", None
        if self._planner.reads_reasoning:
            (tail,) = await self._tokenizer.decode([rows[0][-NUM_TAIL_TOKENS:]], False)
            tags = await self._thinking_tags()
        reader = self._planner.reader(request, self._shown_format, tail)
        count = partial(self._count, generation.model, request.message)
        generation.messages = replace(reader, on_read=count)
        single = tags.single if tags is not None else None
        if single is not None and reader.begin is not None:
            generation.reasoning_tokens = ReasoningTokenCounter(single, reader.begin)

    def _count(self, model_name: str, message: MessageRequest, has_calls: bool) -> None:
        self._metrics.tool_calls_read(
            model_name,
            streamed=message.streamed,
            has_calls=has_calls,
            request_type=message.request_type,
        )

    async def plan_thinking(
        self, generation: Generation, params: SamplingParams, rows: Sequence[Sequence[int]]
    ) -> list[SamplingParams]:
        """Return the parameters for each prompt, their thinking budget in token ids.

        Args:
            generation: As `attach` has left it.
            params: Of all prompts.
            rows: The token ids of the prompts.

        Raises:
            InvalidRequestError: There is a budget, and no reasoning that could be told apart.
        """
        if params.thinking_token_budget is None:
            return [params] * len(rows)
        if not self._planner.reads_reasoning:
            raise _no_budget("this server tells no reasoning apart (--reasoning-parser)")
        tags = await self._thinking_tags()
        if tags is None:
            raise _no_budget(f"this model's tokenizer has no tokens for {OPEN} and {CLOSE}")
        begin = generation.messages.begin
        return [with_thinking_budget(params, tags, begin, row) for row in rows]

    @property
    def _shown_format(self) -> str:
        info = self._tokenizer.info
        return info.tool_call_format if info else ""

    async def _thinking_tags(self) -> ThinkingTags | None:
        """Return the tags as tokens; None where there are none that spell them."""
        fingerprint = self._tokenizer.info.fingerprint if self._tokenizer.info else ""
        if self._tags is None or self._tags[0] != fingerprint:
            rows = await self._tokenizer.encode([OPEN, CLOSE], add_special_tokens=False)
            texts = await self._tokenizer.decode(rows, skip_special_tokens=False)
            is_spelled = [text.strip() for text in texts] == [OPEN, CLOSE]
            start, end = map(tuple, rows)
            self._tags = fingerprint, ThinkingTags(start, end) if is_spelled else None
        return self._tags[1]


def _no_budget(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"thinking_token_budget: cannot be kept, since {why}; leave it out",
        reason="UNSUPPORTED_PARAMETER",
        field="thinking_token_budget",
    )
