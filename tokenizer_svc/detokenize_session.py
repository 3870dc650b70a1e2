"""All requests that one gateway detokenizes on one stream: frames in, answers out.

Owns the open requests and their handles. A request that cannot be detokenized is an error of its
own and harms no other. Knows nothing of gRPC, protobuf, heartbeats or frame numbers. Belongs to one
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pagewire.kit.logs import get_logger
from pagewire.kit.rust_panics import is_rust_panic
from pagewire.sampling_params import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS
from tokenizer_svc.detokenizer import DetokenizeOptions, Detokenizer
from tokenizer_svc.metrics import TokenizerCounters
from tokenizer_svc.model_tokenizer import ModelTokenizer

MAX_OPEN_REQUESTS = 65_536
# Tokens after which other tasks get their turn: a few milliseconds of work.
_TOKENS_BETWEEN_PAUSES = 4096
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that opens, perhaps with output that it had elsewhere."""

    handle: int
    options: DetokenizeOptions
    output_token_ids: Sequence[int] = ()


class TokenRow(NamedTuple):
    """New output tokens of one open request; a tuple, as there is one for every output token."""

    handle: int
    token_ids: Sequence[int]
    end: bool = False
    last_is_stop_token: bool = False


@dataclass(frozen=True, slots=True)
class TokenFrame:
    """What one frame brings; opens come before rows, rows before closes."""

    opens: Sequence[OpenRequest] = ()
    rows: Sequence[TokenRow] = ()
    closes: Sequence[int] = ()
    extra_token_ids: Sequence[int] = ()
    num_new_tokens: int = 0
    """Of all rows together."""


@dataclass(slots=True)
class TextFrame:
    """The answer, in columns as it goes on the wire."""

    handles: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    token_offsets: list[int] = field(default_factory=list)
    stop_handles: list[int] = field(default_factory=list)
    stop_indexes: list[int] = field(default_factory=list)
    stop_token_offsets: list[int] = field(default_factory=list)
    extra_token_bytes: list[bytes] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)

    def add_row(self, handle: int, text: str, token_offset: int) -> None:
        self.handles.append(handle)
        self.texts.append(text)
        self.token_offsets.append(token_offset)


class DetokenizeSession:
    """Invariant: a handle is in `_open` from its open until its end, stop, close or error."""

    def __init__(self, model: ModelTokenizer, counters: TokenizerCounters | None = None) -> None:
        self._model = model
        self._counters = counters or TokenizerCounters()
        self._open: dict[int, Detokenizer] = {}
        self._num_tokens_since_pause = 0

    @property
    def num_open(self) -> int:
        return len(self._open)

    async def take(self, frame: TokenFrame) -> TextFrame:
        """Take in one frame and answer it; lets other tasks run during long ones."""
        answer = TextFrame()
        self._counters.num_detokenized_tokens += frame.num_new_tokens
        for opened in frame.opens:
            self._start(opened, answer)
            if opened.output_token_ids and opened.handle in self._open:
                await self._paced(TokenRow(opened.handle, opened.output_token_ids), answer)
        for row in frame.rows:
            self._num_tokens_since_pause += len(row.token_ids) + 1
            if self._num_tokens_since_pause > _TOKENS_BETWEEN_PAUSES:
                await self._paced(row, answer)
            else:
                self._row(row, answer)
        for handle in frame.closes:
            self._open.pop(handle, None)
        await self._spell(frame.extra_token_ids, answer)
        return answer

    async def _spell(self, token_ids: Sequence[int], answer: TextFrame) -> None:
        bytes_of = self._model.vocabulary.bytes_of
        for start in range(0, len(token_ids), _TOKENS_BETWEEN_PAUSES):
            if start:
                await asyncio.sleep(0)
            part = token_ids[start : start + _TOKENS_BETWEEN_PAUSES]
            answer.extra_token_bytes += [bytes_of(token_id) for token_id in part]

    def _start(self, opened: OpenRequest, answer: TextFrame) -> None:
        problem = self._problem(opened)
        if problem is not None:
            self._open.pop(opened.handle, None)
            answer.errors.append((opened.handle, problem))
            return
        self._open[opened.handle] = Detokenizer(self._model.decoder_tables, opened.options)

    def _problem(self, opened: OpenRequest) -> str | None:
        stop = opened.options.stop
        if opened.handle in self._open:
            return "the handle is in use"
        if len(self._open) >= MAX_OPEN_REQUESTS:
            return f"more than {MAX_OPEN_REQUESTS} requests are open on this stream"
        if len(stop) > MAX_STOP_STRINGS:
            return f"at most {MAX_STOP_STRINGS} stop strings are allowed"
        if not all(0 < len(text) <= MAX_STOP_STRING_CHARS for text in stop):
            return f"a stop string has 1 to {MAX_STOP_STRING_CHARS} characters"
        return None

    async def _paced(self, row: TokenRow, answer: TextFrame) -> None:
        """The row in pieces, with pauses; its answer is still one row."""
        ids = row.token_ids
        parts = TextFrame()
        for start in range(0, max(len(ids), 1), _TOKENS_BETWEEN_PAUSES):
            await asyncio.sleep(0)
            stop = start + _TOKENS_BETWEEN_PAUSES
            last = stop >= len(ids)
            piece = TokenRow(
                row.handle, ids[start:stop], row.end and last, row.last_is_stop_token and last
            )
            self._row(piece, parts)
        self._num_tokens_since_pause = 0
        answer.errors += parts.errors
        if parts.handles:
            answer.add_row(row.handle, "".join(parts.texts), parts.token_offsets[-1])
        answer.stop_handles += parts.stop_handles
        answer.stop_indexes += parts.stop_indexes
        answer.stop_token_offsets += parts.stop_token_offsets

    def _row(self, row: TokenRow, answer: TextFrame) -> None:
        handle, token_ids, end, last_is_stop_token = row
        detokenizer = self._open.get(handle)
        if detokenizer is None:
            # A stop string or an error closed it while these tokens were on their way.
            return
        try:
            text, stop_hit = detokenizer.append(
                token_ids, last_is_stop_token=last_is_stop_token, end=end
            )
        except BaseException as exc:
            if not isinstance(exc, Exception) and not is_rust_panic(exc):
                raise
            # A bug or a broken decoder: it ends this request only.
            _log.exception("request cannot be detokenized")
            del self._open[handle]
            answer.errors.append((handle, "the output cannot be turned into text"))
            return
        answer.add_row(handle, text, detokenizer.num_tokens)
        if stop_hit is not None:
            answer.stop_handles.append(handle)
            answer.stop_indexes.append(stop_hit.stop_index)
            answer.stop_token_offsets.append(stop_hit.num_tokens)
        if end or stop_hit is not None:
            del self._open[handle]
