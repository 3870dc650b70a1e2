"""What the service does with a tokenizer: checks sizes, decides on threads, answers.

Small work runs at once on the event loop, where a hop to a thread would cost more than it;
everything else goes to the work pool. Knows nothing of protobuf and gRPC; its errors say what to
change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pagewire.kit.errors import InvalidRequestError
from tokenizer_svc.chat_template import ChatRequest, ChatTemplates
from tokenizer_svc.metrics import TokenizerCounters
from tokenizer_svc.model_tokenizer import ModelTokenizer
from tokenizer_svc.work_pool import WorkPool

T = TypeVar("T")

MAX_BATCH = 4096
MAX_MESSAGES = 4096
# About a millisecond of work.
_INLINE_BYTES = 2048
_INLINE_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask for."""

    max_prompt_bytes: int
    """Longest text that is tokenized, in UTF-8 bytes; also the longest rendered conversation."""
    trust_request_chat_template: bool = False
    """Whether a request may bring its own chat template."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as the model gets it."""

    text: str
    token_ids: Sequence[int]


class TokenizerEngine:
    """One model's tokenizer behind limits and threads. Used from one event loop."""

    def __init__(
        self,
        model: ModelTokenizer,
        templates: ChatTemplates,
        limits: Limits,
        pool: WorkPool,
        counters: TokenizerCounters | None = None,
    ) -> None:
        self.model = model
        self.templates = templates
        self.limits = limits
        self.counters = counters or TokenizerCounters()
        self._pool = pool

    async def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text.

        Raises:
            InvalidRequestError: A text is too long, or there are too many.
        """
        if len(texts) > MAX_BATCH:
            raise InvalidRequestError(
                f"{len(texts)} texts; at most {MAX_BATCH} in one call", field="texts"
            )
        for text in texts:
            self._check_bytes(text, "texts")
        return await self._encode(texts, add_special_tokens)

    async def encode_bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """Two rows for each word: as it is, and with a space before it; no special tokens."""
        variants = [variant for word in words for variant in (word, f" {word}")]
        return await self.encode(variants, add_special_tokens=False)

    async def render_chat(self, request: ChatRequest, request_bytes: int) -> RenderedChat:
        """A conversation's text and token ids.

        Args:
            request: The conversation.
            request_bytes: Its size.

        Raises:
            InvalidRequestError: The conversation is too long, empty, or not one that the template
                takes.
        """
        if not request.messages:
            raise InvalidRequestError("a conversation needs at least one message", field="messages")
        if len(request.messages) > MAX_MESSAGES:
            raise InvalidRequestError(
                f"{len(request.messages)} messages; at most {MAX_MESSAGES}", field="messages"
            )
        if request_bytes > self.limits.max_prompt_bytes:
            raise self._too_long(request_bytes, "messages")
        trusted = request.chat_template is None
        if not trusted and not self.limits.trust_request_chat_template:
            raise InvalidRequestError(
                "templates in requests are off; start `pagewire serve`, or the tokenizer "
                "service, with --trust-request-chat-template to allow them",
                reason="CHAT_TEMPLATE_NOT_TRUSTED",
                field="chat_template",
            )
        inline = trusted and request_bytes <= _INLINE_BYTES
        text = await self._do(inline, self.templates.render, request, self.limits.max_prompt_bytes)
        self._check_bytes(text, "messages")
        # Most templates write the special tokens themselves.
        rows = await self._encode([text], request.add_special_tokens)
        return RenderedChat(text, rows[0])

    async def decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        """Text of each row; ids that are not in the vocabulary are no text."""
        if len(rows) > MAX_BATCH:
            raise InvalidRequestError(
                f"{len(rows)} rows; at most {MAX_BATCH} in one call", field="rows"
            )
        inline = sum(map(len, rows)) <= _INLINE_TOKENS
        return await self._do(inline, self.model.decode_batch, rows, skip_special_tokens)

    async def _encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        inline = sum(map(len, texts)) <= _INLINE_BYTES
        rows = await self._do(inline, self.model.encode_batch, texts, add_special_tokens)
        self.counters.encoded(rows)
        return rows

    async def _do(self, inline: bool, work: Callable[..., T], *arguments: Any) -> T:
        return work(*arguments) if inline else await self._pool.run(work, *arguments)

    def _check_bytes(self, text: str, field: str) -> None:
        limit = self.limits.max_prompt_bytes
        # A character has 1 to 4 bytes, so most texts need not be encoded to be measured.
        if len(text) * 4 > limit and (size := len(text.encode())) > limit:
            raise self._too_long(size, field)

    def _too_long(self, num_bytes: int, field: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"the prompt has {num_bytes} bytes; at most {self.limits.max_prompt_bytes} are taken",
            reason="PROMPT_TOO_LONG",
            field=field,
        )
