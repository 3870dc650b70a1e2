"""One admitted request of a client: its outputs as they come, merged over its children, and usage.

`request_service` builds and ends it; the front doors read it. It knows neither HTTP nor engines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.generation import AbortReason, Finished, FinishReason, Output, Usage
from gateway.live_request import LiveRequest
from gateway.message_plan import MessageReader
from gateway.output_collector import OutputCollector
from gateway.reasoning.token_counter import ReasoningTokenCounter
from gateway.send_watch import SendWatch
from gateway.trace.request_trace import current as current_trace
from pagewire.kit.errors import DeadlineExceededError, PagewireError, QueueFullError


class Generation:
    """One admitted request: its outputs as they come, and its usage. Read by one task."""

    def __init__(
        self,
        request_id: str,
        model: str,
        deadline_s: float,
        collector: OutputCollector,
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
        self.trace = current_trace()
        self._deadline_s = deadline_s
        self._send_timeout_s = send_timeout_s
        self._loop = asyncio.get_running_loop()
        self._send_watch = SendWatch(send_timeout_s, deadline_s, self._late_send)
        self._num_outputs_per_prompt = 1
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

    def facts(self) -> dict[str, object]:
        """Return what the log line at the end says of it."""
        usage = self.usage
        return {
            "model": self.model,
            "generation_id": self.request_id,
            "num_outputs": len(self.requests),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }

    @property
    def blocked_s(self) -> float:
        """How long a write to the client has waited for it to read; 0: none is under way."""
        return self._send_watch.blocked_s

    def enter(self, requests: list[LiveRequest], num_outputs_per_prompt: int) -> None:
        self.requests = requests
        for request in requests:
            request.trace = self.trace.output()
        self._num_outputs_per_prompt = num_outputs_per_prompt

    def prompt_of(self, index: int) -> int:
        """Return the place of the prompt that output `index` belongs to."""
        return index // self._num_outputs_per_prompt

    def prompt_token_ids(self, index: int) -> Sequence[int]:
        """Return the prompt of output `index`."""
        return self.requests[index].request.prompt_token_ids

    async def outputs(
        self,
        idle_s: float | None = None,
        before_each: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> AsyncIterator[list[Output]]:
        """Yield new outputs, merged when read slowly, until every index has finished.

        Args:
            idle_s: Yield an empty list whenever nothing has come for so long; None: never.
            before_each: Awaited when there are some; they merge until it is over.

        Raises:
            DeadlineExceededError: The deadline passed first.
            PagewireError: The request failed.
        """
        num_unfinished = len(self.requests)
        while num_unfinished:
            until_s = self._deadline_s
            if idle_s is not None:
                until_s = min(until_s, self._loop.time() + idle_s)
            try:
                await self.collector.wait(until_s)
                if before_each is not None:
                    await before_each()
                outputs = self.collector.take_now()
                if not outputs and until_s == self._deadline_s:
                    raise self._past_deadline()
            except PagewireError as exc:
                self.trace.failed(exc)
                raise
            num_unfinished -= self._took(outputs)
            if not num_unfinished:
                self.trace.took_all()
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
            raise self._past_deadline() from None

    def sending(self) -> SendWatch:
        """End a write inside that waits too long for a client that reads nothing.

        One write at a time. What it raises then:
            DeadlineExceededError: The request's time is over.
            QueueFullError: The client had its time to read.
        """
        return self._send_watch

    def close(self) -> None:
        """Let go of timers; nobody reads or writes any more. Idempotent."""
        self._send_watch.close()
        self.collector.close()

    def _took(self, outputs: Sequence[Output]) -> int:
        """Note new outputs; return how many of them have ended."""
        num_ended = 0
        if outputs:
            self.trace.took_outputs()
        for output in outputs:
            if self.reasoning_tokens is not None:
                self.reasoning_tokens.push(output.index, output.token_ids)
            if output.finished is not None:
                num_ended += 1
                self.trace.took_end(output.finished.reason)
            if self._prompt_only:
                _drop_output(output)
        return num_ended

    def _late_send(self) -> PagewireError:
        if self._loop.time() >= self._deadline_s:
            return self._past_deadline()
        message = f"the client has read nothing for {self._send_timeout_s:g} s"
        return QueueFullError(message, reason="SLOW_CLIENT")

    def _past_deadline(self) -> DeadlineExceededError:
        self.abort_reason = AbortReason.DEADLINE
        return DeadlineExceededError("the request's deadline passed")


def _drop_output(output: Output) -> None:
    """Leave only what is about the prompt."""
    output.text, output.token_ids, output.logprobs = "", [], []
    if output.finished is not None:
        output.finished = Finished(FinishReason.LENGTH)
