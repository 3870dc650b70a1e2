"""`Generate`: one request of one caller that is no gateway.

An `OutputSink` with one request: outputs that the caller has not read yet merge, so memory is
bounded by the request's own length. The request ends when `stream` does, however it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from pagewire.kit.errors import PagewireError
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.stop import FinishReason, Stop


@dataclass(slots=True)
class DirectOutput:
    """What is new of the request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: LogprobRows | None = None
    """Of `token_ids`, where asked for."""
    prompt_logprobs: LogprobRows | None = None
    """Where asked for, with the first token: of each prompt token but the first."""
    num_cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; told once, not later than the first token."""
    end: FinishedRequest | None = None
    """In the last output."""

    def __bool__(self) -> bool:
        return bool(self.token_ids) or self.end is not None


class DirectClient:
    """Use: make it, `add`, iterate `stream` to its end or close it.

    One caller with several requests has a client each and one event for all: it waits for the
    event and takes from each.
    """

    def __init__(self, core: EngineCore, wake: asyncio.Event | None = None) -> None:
        self._core = core
        self._output = DirectOutput()
        self._error: PagewireError | None = None
        self._wake = wake or asyncio.Event()
        self._live_ids: list[str] = []
        """The request's, until it has ended: its id may be another's then."""
        self.client_id = core.attach(self)

    def add(self, request: EngineCoreRequest) -> None:
        """Queue the request.

        Raises:
            PagewireError: It is refused.
        """
        self._core.add_request(request)
        self._live_ids = [request.request_id]

    async def stream(self) -> AsyncIterator[DirectOutput]:
        """What is new as it comes; the last item has the end.

        Raises:
            PagewireError: The request failed, or the engine goes away.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            output = self.take()
            if output:
                yield output
            if output.end is not None:
                return

    def take(self) -> DirectOutput:
        """What is new since the last time; false if nothing is.

        Raises:
            PagewireError: The request failed, or the engine goes away.
        """
        # Taken together: more may come while the caller is busy with it.
        output, self._output = self._output, DirectOutput()
        end = output.end
        if end is None and self._error is not None:
            raise self._take_error(self._error)
        if end is not None and end.reason is FinishReason.ERROR:
            raise end.error()
        return output

    def finish(self, stop: Stop) -> None:
        """End the request from outside, unless it has ended; what is taken next has that end."""
        self._core.finish_requests(self._live_ids, stop)

    def close(self) -> None:
        """End the request if it has not ended; idempotent."""
        self._core.detach(self.client_id, self._live_ids)

    def _take_error(self, error: PagewireError) -> PagewireError:
        """Let go of the error that is to be raised: its traceback will lead back here."""
        self._error = None
        return error

    # OutputSink.

    def put_outputs(self, outputs: EngineCoreOutputs, timings: StepTimings) -> None:
        output = self._output
        for row, token_ids in enumerate(outputs.new_token_ids):
            output.token_ids += token_ids
            logprobs = outputs.logprobs.get(row)
            if output.logprobs is None:
                output.logprobs = logprobs
            elif logprobs is not None:
                output.logprobs.extend(logprobs)
            output.prompt_logprobs = outputs.prompt_logprobs.get(row, output.prompt_logprobs)
        for item in outputs.scheduled:
            output.num_cached_tokens = item.num_cached_tokens
        self.put_finished(outputs.finished)

    def put_finished(self, finished: Sequence[FinishedRequest]) -> None:
        for end in finished:
            self._output.end = end
            self._live_ids = []
        self._wake.set()

    def put_admitted(self, request_id: str) -> None:
        """Nothing to say: the first token says it."""

    def put_suspicions(self, counts: Mapping[str, int]) -> None:
        """Nothing to say: the request stays here."""

    def set_recovering(self, recovering: bool) -> None:
        """Nothing to say: the stream pauses and goes on."""

    def set_draining(self, deadline_s: float) -> None:
        """Nothing to say: the request may finish."""

    def end(self, error: PagewireError) -> None:
        self._error = error
        self._wake.set()
