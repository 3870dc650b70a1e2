"""What `message_plan` needs of the tokenizer service: the prompt's end, and the tags as tokens."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.generation import GenerationRequest
from gateway.live_generation import Generation
from gateway.message_config import MessageConfig
from gateway.message_plan import NUM_TAIL_TOKENS, MessagePlanner
from gateway.reasoning.think_tags import CLOSE, OPEN
from gateway.reasoning.token_counter import ReasoningTokenCounter, TagTokens
from gateway.tokenizer_client import TokenizerClient


class MessageService:
    """Used from one event loop."""

    def __init__(self, config: MessageConfig, tokenizer: TokenizerClient) -> None:
        self._planner = MessagePlanner(config)
        self._tokenizer = tokenizer
        self._tags: tuple[str, TagTokens | None] | None = None
        """Of the tokenizer with this fingerprint."""

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
            tags = await self._tag_tokens()
        reader = self._planner.reader(request, self._shown_format, tail)
        generation.messages = reader
        if tags is not None and reader.begin is not None:
            generation.reasoning_tokens = ReasoningTokenCounter(tags, reader.begin)

    @property
    def _shown_format(self) -> str:
        info = self._tokenizer.info
        return info.tool_call_format if info else ""

    async def _tag_tokens(self) -> TagTokens | None:
        """Return the tags as tokens; None where they are more than one each."""
        fingerprint = self._tokenizer.info.fingerprint if self._tokenizer.info else ""
        if self._tags is None or self._tags[0] != fingerprint:
            rows = await self._tokenizer.encode([OPEN, CLOSE], add_special_tokens=False)
            is_single = all(len(row) == 1 for row in rows)
            self._tags = fingerprint, TagTokens(rows[0][0], rows[1][0]) if is_single else None
        return self._tags[1]
