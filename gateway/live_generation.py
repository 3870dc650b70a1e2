"""One admitted request of a client: its outputs as they come, merged over its children, and usage.

`request_service` builds and ends it; the front doors read it. It knows neither HTTP nor engines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.generation import AbortReason, Finished, FinishReason, Output, Usage
from gateway.live_request import LiveRequest
from gateway.message_plan import MessageReader
from gateway.metrics import GatewayMetrics
from gateway.output_collector import OutputCollector
from gateway.reasoning.token_counter import ReasoningTokenCounter
from pagewire.kit.errors import DeadlineExceededError, PagewireError, QueueFullError


class Generation:
    """One admitted request: its outputs as they come, and its usage. Read by one task."""

    def __init__(
        self,
        request_id: str,
        model: str,
        deadline_s: float,
        collector: OutputCollector,
        metrics: GatewayMetrics,
        send_timeout_s: float,
        system_fingerprint: str = "",
        prompt_only: bool = False,
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.created = int(time.time())
        self.system_fingerprint = system_fingerprint
        """What made the output: the same one, the same tokens."""
        self.prompt_texts: Sequence[str] = ()
        """Where the request asks for `echo`: the text of each prompt."""
        self.messages = MessageReader()
        """How outputs are read as messages; one that is asked for nothing shows all as content."""
        self.reasoning_tokens: ReasoningTokenCounter | None = None
        """Where reasoning is told apart by tokens; counts what `outputs` has given."""
        self.abort_reason = AbortReason.CLIENT_GONE
        self.collector = collector
        self.requests: list[LiveRequest] = []
        self._deadline_s = deadline_s
        self._send_timeout_s = send_timeout_s
        self._num_outputs_per_prompt = 1
        self._started_s = time.monotonic()
        self._metrics = metrics
        self._prompt_only = prompt_only

    @property
    def usage(self) -> Usage:
        """Token counts so far; a prompt counts once, however many outputs it has."""
        firsts = self.requests[:: self._num_outputs_per_prompt]
        return Usage(
            prompt_tokens=sum(len(each.request.prompt_token_ids) for each in firsts),
            completion_tokens=0
            if self._prompt_only
            else sum(each.num_delivered_tokens for each in self.requests),
            cached_tokens=sum(each.num_cached_tokens or 0 for each in firsts),
            reasoning_tokens=self.reasoning_tokens.num_tokens if self.reasoning_tokens else None,
        )

    def enter(self, requests: list[LiveRequest], num_outputs_per_prompt: int) -> None:
        self.requests = requests
        self._num_outputs_per_prompt = num_outputs_per_prompt

    def prompt_of(self, index: int) -> int:
        """Return the place of the prompt that output `index` belongs to."""
        return index // self._num_outputs_per_prompt

    def prompt_token_ids(self, index: int) -> Sequence[int]:
        """Return the prompt of output `index`."""
        return self.requests[index].request.prompt_token_ids

    async def outputs(self, idle_s: float | None = None) -> AsyncIterator[list[Output]]:
        """Yield new outputs, merged when read slowly, until every index has finished.

        Args:
            idle_s: Yield an empty list whenever nothing has come for so long; None: never.

        Raises:
            DeadlineExceededError: The deadline passed first.
            PagewireError: The request failed.
        """
        num_unfinished = len(self.requests)
        is_first = True
        while num_unfinished:
            outputs = await self._take(idle_s)
            if is_first and outputs:
                self._metrics.time_to_first_token.observe(time.monotonic() - self._started_s)
                is_first = False
            for output in outputs:
                if self.reasoning_tokens is not None:
                    self.reasoning_tokens.push(output.index, output.token_ids)
                if output.finished is not None:
                    num_unfinished -= 1
                    self._metrics.finished(output.finished.reason)
                if self._prompt_only:
                    _drop_output(output)
            if not num_unfinished:
                self._metrics.e2e_latency.observe(time.monotonic() - self._started_s)
            yield outputs

    def fail(self, error: PagewireError, reason: AbortReason) -> None:
        """End the request from outside."""
        self.abort_reason = reason
        for request in self.requests:
            request.fail(error)
        self.collector.fail(error)

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """End what is awaited inside when the request's time is over.

        Raises:
            DeadlineExceededError: It is.
        """
        try:
            async with asyncio.timeout_at(self._deadline_s):
                yield
        except TimeoutError:
            self.abort_reason = AbortReason.DEADLINE
            raise DeadlineExceededError("the request's deadline passed") from None

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """End a write inside that waits too long for a client that reads nothing.

        Raises:
            DeadlineExceededError: The request's time is over.
            QueueFullError: The client had its time to read.
        """
        limit_s = asyncio.get_running_loop().time() + self._send_timeout_s
        if self._deadline_s <= limit_s:
            async with self.deadline():
                yield
            return
        try:
            async with asyncio.timeout_at(limit_s):
                yield
        except TimeoutError:
            message = f"the client has read nothing for {self._send_timeout_s:g} s"
            raise QueueFullError(message, reason="SLOW_CLIENT") from None

    async def _take(self, idle_s: float | None) -> list[Output]:
        async with self.deadline():
            try:
                # Nothing is lost: `take` can be cancelled only while it waits.
                async with asyncio.timeout(idle_s):
                    return await self.collector.take()
            except TimeoutError:
                return []


def _drop_output(output: Output) -> None:
    """Leave only what is about the prompt."""
    output.text, output.token_ids, output.logprobs = "", [], []
    if output.finished is not None:
        output.finished = Finished(FinishReason.LENGTH)
