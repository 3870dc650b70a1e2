"""Live requests on their way through the tokenizer service, over all streams they are opened on.

It takes note of new tokens (`TokenSink`) and keeps what a stream must be told; a
`DetokenizerStream` carries it. When a stream is lost, everything is opened again on the next one
from each request's own output ids, and text that was delivered before is dropped from the replay.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.live_request import LiveRequest, Spelling
from gateway.streams import Recovery
from pagewire.kit.errors import InternalError, ServiceUnavailableError
from pagewire.kit.logs import get_logger

log = get_logger("gateway.detokenizer")


@dataclass(slots=True)
class OpenRequest:
    """A request on the current stream."""

    request: LiveRequest
    handle: int
    num_replayed_tokens: int
    """Output tokens that the open itself carries."""
    num_sent_tokens: int
    """Output tokens sent so far, the replayed ones included."""
    num_chars_to_drop: int
    """Characters of the coming text that the client has already."""
    is_opened: bool = False
    end_sent: bool = False
    prompt_spelled: bool = False
    """Whether the bytes for the prompt's logprobs are asked for."""

    @property
    def num_unsent_tokens(self) -> int:
        """What it adds to a frame: tokens to be turned into text, and those to be spelled."""
        request = self.request
        num_tokens = len(request.output_token_ids) - self.num_sent_tokens
        num_tokens += 0 if self.is_opened else self.num_replayed_tokens
        if request.waiting_logprobs:
            num_tokens += sum(row.num_to_spell for row in request.waiting_logprobs)
        if request.waiting_prompt_logprobs and not self.prompt_spelled:
            num_tokens += sum(row.num_to_spell for row in request.waiting_prompt_logprobs)
        return num_tokens


class Detokenizer:
    """Implements `TokenSink`. Used from one event loop.

    `_dirty` are open requests with something to send; each is sent what it has gathered by then,
    so a slow tokenizer makes frames larger, not more numerous.
    """

    def __init__(self, recovery_timeout_s: float) -> None:
        self._open: dict[LiveRequest, OpenRequest] = {}
        self._by_handle: dict[int, OpenRequest] = {}
        self._dirty: dict[LiveRequest, None] = {}
        self._closes: list[int] = []
        self._handles = itertools.count(1)
        self.recovery = Recovery(recovery_timeout_s, self._on_give_up)
        self._fingerprint: str | None = None
        self.has_work = asyncio.Event()
        self.service_ns = 0
        """What the tokenizer took for the frame whose rows are delivered now."""

    def push(self, requests: Sequence[LiveRequest]) -> None:
        for request in requests:
            if request.is_over:
                continue
            if request not in self._open:
                self._enter(request)
            self._dirty[request] = None
        if self._dirty:
            self.has_work.set()

    def forget(self, request: LiveRequest) -> None:
        """Drop the request, and close it on the stream if it is opened there."""
        entry = self._leave(request)
        if entry is not None and entry.is_opened and not entry.end_sent:
            self._closes.append(entry.handle)
            self.has_work.set()

    def restart(self, fingerprint: str) -> None:
        """Prepare for a fresh stream: every request is opened anew, with its output so far."""
        self.recovery.connected()
        if self._fingerprint not in (None, fingerprint):
            self._fail_all("the tokenizer came back with another vocabulary", "TOKENIZER_CHANGED")
        self._fingerprint = fingerprint
        requests = list(self._open)
        self._open.clear()
        self._by_handle.clear()
        self._closes.clear()
        self._dirty.clear()
        self.push(requests)

    def on_lost(self) -> None:
        """Start to count the time that requests may wait for another stream."""
        self.recovery.lost()

    def take_work(self, max_tokens: int) -> tuple[list[OpenRequest], list[int]]:
        """Return open requests with something to send, and handles to close, for one frame."""
        entries: list[OpenRequest] = []
        num_tokens = 0
        for request in self._dirty:
            if num_tokens >= max_tokens:
                break
            entry = self._open[request]
            entries.append(entry)
            num_tokens += entry.num_unsent_tokens
        if len(entries) == len(self._dirty):
            self._dirty.clear()
        else:
            for entry in entries:
                del self._dirty[entry.request]
        closes, self._closes = self._closes, []
        if not self._dirty:
            self.has_work.clear()
        return entries, closes

    def on_text(
        self, handle: int, text: str, token_offset: int, is_end: bool, spelling: Spelling
    ) -> None:
        """Deliver the text of a row; rows of requests that we have dropped are ignored."""
        entry = self._by_handle.get(handle)
        if entry is None:
            return
        request = entry.request
        if entry.num_replayed_tokens:
            text, token_offset = self._without_delivered(entry, text, token_offset)
        if is_end:
            self._leave(request)
            request.trace.detokenized(self.service_ns)
            request.complete(text, token_offset, spelling)
        else:
            request.deliver(text, token_offset, spelling)

    def on_stop(
        self, handle: int, text: str, token_offset: int, stop_index: int, spelling: Spelling
    ) -> None:
        """End a request whose text met a stop string."""
        entry = self._by_handle.get(handle)
        if entry is None:
            return
        text, _ = self._without_delivered(entry, text, token_offset)
        self._leave(entry.request)
        entry.request.trace.detokenized(self.service_ns)
        entry.request.stop_at(text, token_offset, stop_index, spelling)

    def on_error(self, handle: int, message: str) -> None:
        """End a request that the tokenizer cannot detokenize; the engine is told by its client."""
        entry = self._by_handle.get(handle)
        if entry is not None:
            log.error("detokenize_failed", message=message)
            self._leave(entry.request)
            entry.request.fail(
                InternalError(
                    "the output could not be turned into text", reason="DETOKENIZE_FAILED"
                )
            )

    def _enter(self, request: LiveRequest) -> None:
        entry = OpenRequest(
            request=request,
            handle=next(self._handles),
            num_replayed_tokens=request.num_delivered_tokens,
            num_sent_tokens=request.num_delivered_tokens,
            num_chars_to_drop=request.num_delivered_chars,
        )
        self._open[request] = self._by_handle[entry.handle] = entry

    def _leave(self, request: LiveRequest) -> OpenRequest | None:
        entry = self._open.pop(request, None)
        if entry is not None:
            del self._by_handle[entry.handle]
            self._dirty.pop(request, None)
        return entry

    def _without_delivered(
        self, entry: OpenRequest, text: str, token_offset: int
    ) -> tuple[str, int]:
        if dropped := min(entry.num_chars_to_drop, len(text)):
            entry.num_chars_to_drop -= dropped
            text = text[dropped:]
        return text, max(token_offset, entry.request.num_delivered_tokens)

    def _on_give_up(self) -> None:
        self._fail_all("the tokenizer was lost and did not come back in time", "TOKENIZER_LOST")

    def _fail_all(self, message: str, reason: str) -> None:
        for request in list(self._open):
            self._leave(request)
            request.fail(ServiceUnavailableError(message, reason=reason))
