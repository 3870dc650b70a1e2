"""One output on its way: what is needed to start it again elsewhere, and how far it is.

The engine's client appends tokens, the detokenizer turns them into text, and text goes to the
client's collector. All of it on one event loop. It knows neither stream: `EngineRequest` is what
an engine needs, the owner and the sink are what the streams implement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.generation import (
    AbortReason,
    Finished,
    FinishReason,
    Output,
)
from gateway.logprobs import LogprobRow, spell
from gateway.output_collector import OutputCollector
from gateway.output_record import OutputRecord
from gateway.trace.output_trace import UNTRACED, UntracedOutput
from pagewire.kit.errors import DeadlineExceededError, PagewireError
from pagewire.sampling_params import SamplingParams


class RequestOwner(Protocol):
    """The engine that runs a request."""

    def abort(self, request: LiveRequest, reason: AbortReason) -> None:
        """Tell the engine to end the request; no-op if it does not have it."""


class StreamOwner(Protocol):
    """What an engine's stream tells the client that owns it."""

    def on_draining(self) -> None:
        """Take note that the engine takes no more requests on this stream."""

    def on_recovering(self) -> None:
        """Take note that the engine has no worker, or has one again.

        Comes with each frame while it has none: other engines come and go meanwhile.
        """

    def take_back(self, request: LiveRequest) -> None:
        """Own a request again that the engine refused because it is going away."""


class TokenSink(Protocol):
    """What takes the new tokens of live requests."""

    def push(self, requests: Sequence[LiveRequest]) -> None:
        """Take note that these requests have new tokens or have ended; one call a frame."""

    def forget(self, request: LiveRequest) -> None:
        """Forget a request that ended without its text; no-op if it is not known."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as an engine needs it; the same on every engine."""

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    arrival_time_ns: int
    deadline_ns: int
    priority: int = 0
    cache_salt: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class EngineFinish:
    """How the engine ended a request."""

    reason: FinishReason
    stop_token_id: int | None
    """The stop or end-of-sequence token that ended it; it is the last output token."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """Bytes of tokens whose logprobs are delivered, in the order of `logprobs.ids_to_spell`."""

    prompt: Sequence[bytes] = ()
    """Begins with the prompt's first token, which has no logprobs."""
    output: Sequence[bytes] = ()


NOTHING_SPELLED = Spelling()


class LiveRequest:
    """The state of one output. Ended for good once `is_over`.

    `num_delivered_tokens <= len(output_token_ids)`, and the text of the delivered tokens that was
    not held back is `num_delivered_chars` long.
    """

    def __init__(
        self,
        request: EngineRequest,
        index: int,
        eos_token_ids: frozenset[int],
        collector: OutputCollector,
        record: OutputRecord,
    ) -> None:
        self.request = request
        self.index = index
        self.record = record
        self.owner: RequestOwner | None = None
        self.trace: UntracedOutput = UNTRACED
        self.admission: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.output_token_ids: list[int] = []
        self.num_delivered_tokens = 0
        self.num_delivered_chars = 0
        self.num_cached_tokens: int | None = None
        self.num_suspicions = 0
        """Steps that went wrong with it since its last token, on whatever engine."""
        self.waiting_logprobs: list[LogprobRow] = []
        """Of the tokens that are not delivered yet, where asked for."""
        self.waiting_prompt_logprobs: list[LogprobRow] | None = None
        """Of the prompt without its first token, where asked for, until they are delivered."""
        self.wants_logprobs = request.sampling_params.num_logprobs is not None
        self.engine_finish: EngineFinish | None = None
        self.is_over = False
        self._eos_token_ids = eos_token_ids
        self._collector = collector

    @property
    def is_admitted(self) -> bool:
        """Whether an engine has taken it: then it may pass the queue limits of the next one."""
        admission = self.admission
        return admission.done() and not admission.cancelled() and admission.exception() is None

    def admit(self) -> None:
        if not self.admission.done():
            self.admission.set_result(None)
            self.trace.admitted()

    def note_scheduled(self, num_cached_tokens: int, queue_s: float) -> None:
        """Keep the first figures: usage is that of the first admission.

        Args:
            num_cached_tokens: Of the prompt.
            queue_s: How long it waited in the engine's queue.
        """
        self.record.scheduled(num_cached_tokens, queue_s)
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens

    def add_tokens(self, token_ids: Sequence[int], logprobs: Sequence[LogprobRow] | None) -> bool:
        """Take new output tokens; False: their logprobs are asked for and are not there."""
        if self.wants_logprobs:
            if logprobs is None or len(logprobs) != len(token_ids):
                return False
            self.waiting_logprobs += logprobs
        self.output_token_ids += token_ids
        self.num_suspicions = 0
        return True

    def deliver(self, text: str, token_offset: int, spelling: Spelling = NOTHING_SPELLED) -> None:
        """Pass on the text of the output tokens up to `token_offset`.

        Args:
            text: What they add to the text that was passed on before.
            token_offset: Number of output tokens.
            spelling: Bytes for the logprobs of the tokens that are new with it.
        """
        if self.is_over:
            return
        output = self._take_output(text, token_offset, spelling)
        if text or output.token_ids:
            self._collector.put(output)

    def complete(self, text: str, token_offset: int, spelling: Spelling = NOTHING_SPELLED) -> None:
        """End as the engine did, with the last text."""
        finish = self.engine_finish
        if self.is_over or finish is None:
            return
        matched = finish.stop_token_id
        is_eos = matched is not None and self._is_eos(matched)
        finished = Finished(
            finish.reason,
            stop_token_id=None if is_eos else matched,
            eos_token_id=matched if is_eos else None,
        )
        self._end(self._take_output(text, token_offset, spelling), finished)

    def stop_at(
        self,
        text: str,
        token_offset: int,
        stop_index: int,
        spelling: Spelling = NOTHING_SPELLED,
    ) -> None:
        """End at a stop string: output and usage end with the token that completed it."""
        if self.is_over:
            return
        del self.output_token_ids[token_offset:]
        stop_string = self.request.sampling_params.stop[stop_index]
        finished = Finished(FinishReason.STOP, stop_string=stop_string)
        self._end(self._take_output(text, token_offset, spelling), finished)
        if self.owner is not None:
            self.owner.abort(self, AbortReason.STOP_STRING)

    def fail(self, error: PagewireError) -> None:
        """End with an error: a refusal before admission, a failure after it."""
        if self.is_over:
            return
        self.is_over = True
        self._count_failure(error)
        if self.admission.done():
            self._collector.fail(error)
        else:
            self.admission.set_exception(error)
            self.admission.exception()  # the waiter may be gone: not a lost exception

    def give_up(self) -> None:
        """End without a word: nobody wants its output any more; idempotent."""
        if not self.is_over and self.is_admitted:
            self.record.ended(FinishReason.ABORT)
        self.is_over = True

    def _count_failure(self, error: PagewireError) -> None:
        """Count the end of what was admitted; a refusal is no end of a request."""
        if self.is_admitted:
            is_late = isinstance(error, DeadlineExceededError)
            self.record.ended(FinishReason.ABORT if is_late else "error")

    def _is_eos(self, token_id: int) -> bool:
        stop_token_ids = self.request.sampling_params.stop_token_ids
        return token_id in self._eos_token_ids and token_id not in stop_token_ids

    def _end(self, output: Output, finished: Finished) -> None:
        self.is_over = True
        self.record.ended(finished.reason)
        output.finished = finished
        self._collector.put(output)

    def _take_output(self, text: str, token_offset: int, spelling: Spelling) -> Output:
        """Return what is new up to `token_offset`; it counts as delivered."""
        token_ids = self.output_token_ids[self.num_delivered_tokens : token_offset]
        output = Output(self.index, text, token_ids)
        if self.waiting_prompt_logprobs is not None and spelling.prompt:
            self._take_prompt_logprobs(output, iter(spelling.prompt))
        if self.wants_logprobs:
            rows = self.waiting_logprobs[: len(token_ids)]
            del self.waiting_logprobs[: len(token_ids)]
            output.logprobs = spell(token_ids, rows, iter(spelling.output))
        if token_ids:
            self.record.delivered(len(token_ids))
        self.num_delivered_tokens = token_offset
        self.num_delivered_chars += len(text)
        return output

    def _take_prompt_logprobs(self, output: Output, token_bytes: Iterator[bytes]) -> None:
        rows, self.waiting_prompt_logprobs = self.waiting_prompt_logprobs or [], None
        output.first_prompt_token = next(token_bytes)
        output.prompt_logprobs = [
            None,
            *spell(self.request.prompt_token_ids[1:], rows, token_bytes),
        ]
