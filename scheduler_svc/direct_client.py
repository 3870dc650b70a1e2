"""`Generate`: one request of one caller that is no gateway.

An `OutputSink` with one request: outputs that the caller has not read yet merge, so memory is
bounded by the request's own length. The request ends when `stream` does, however it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from pagewire.kit.errors import PagewireError
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.output import EngineCoreOutputs, FinishedRequest, StepTimings
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.stop import FinishReason


class DirectClient:
    """Use: `attach`, `add`, iterate `stream` to its end or close it."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._token_ids: list[int] = []
        self._end: FinishedRequest | None = None
        self._error: PagewireError | None = None
        self._wake = asyncio.Event()
        self._request_id = ""
        self.client_id = core.attach(self)

    def add(self, request: EngineCoreRequest) -> None:
        """Queue the request.

        Raises:
            PagewireError: It is refused.
        """
        self._core.add_request(request)
        self._request_id = request.request_id

    async def stream(self) -> AsyncIterator[tuple[Sequence[int], FinishedRequest | None]]:
        """New token ids as they come; the last item has the end.

        Raises:
            PagewireError: The request failed, or the engine goes away.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            # Taken together: more may come while the caller is busy with what is yielded.
            token_ids, self._token_ids = self._token_ids, []
            end = self._end
            if end is None and self._error is not None:
                raise self._error
            if end is not None and end.reason is FinishReason.ERROR:
                raise end.error()
            if token_ids or end is not None:
                yield token_ids, end
            if end is not None:
                return

    def close(self) -> None:
        """End the request if it has not ended; idempotent."""
        self._core.detach(self.client_id, [self._request_id])

    # OutputSink.

    def put_outputs(self, outputs: EngineCoreOutputs, timings: StepTimings) -> None:
        for token_ids in outputs.new_token_ids:
            self._token_ids += token_ids
        self.put_finished(outputs.finished)

    def put_finished(self, finished: Sequence[FinishedRequest]) -> None:
        for end in finished:
            self._end = end
        self._wake.set()

    def put_admitted(self, request_id: str) -> None:
        """Nothing to say: the first token says it."""

    def set_recovering(self, recovering: bool) -> None:
        """Nothing to say: the stream pauses and goes on."""

    def set_draining(self, deadline_s: float) -> None:
        """Nothing to say: the request may finish."""

    def end(self, error: PagewireError) -> None:
        self._error = error
        self._wake.set()
