"""Where the outputs of one client's request wait for it, merged when it reads slowly.

The detokenizer's reader puts, the client's task takes; both run on one event loop. What waits is
bounded by bytes: a client that falls further behind loses its request, not the gateway its memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.generation import Output
from gateway.lazy_timer import LazyTimer
from pagewire.kit.errors import PagewireError, QueueFullError

_TOKEN_BYTES = 8
_LOGPROB_BYTES = 64


class OutputCollector:
    """Holds at most one `Output` an index; `take` empties it. One producer, one consumer."""

    def __init__(self, max_bytes: int, on_overflow: Callable[[], None] | None = None) -> None:
        """Prepare an empty collector.

        Args:
            max_bytes: Bound of what waits.
            on_overflow: Called once when it is exceeded, to stop the producer: the consumer may be
                stuck in a write to its client and see nothing.
        """
        self._max_bytes = max_bytes
        self._on_overflow = on_overflow or _nothing
        self._num_bytes = 0
        self._waiting: dict[int, Output] = {}
        self._failure: PagewireError | None = None
        self._is_closed = False
        self._waiter: asyncio.Future[bool] | None = None
        """Of the consumer that waits; its result is whether there is anything new."""
        self._timer: LazyTimer | None = None

    @property
    def num_bytes(self) -> int:
        """About how much waits."""
        return self._num_bytes

    def put(self, output: Output) -> None:
        """Add to what waits for the output's index; the collector owns it from now on."""
        if self._failure is not None or self._is_closed:
            return
        waiting = self._waiting.get(output.index)
        if waiting is None:
            self._waiting[output.index] = output
        else:
            waiting.extend(output)
        self._num_bytes += _num_bytes(output)
        if self._num_bytes > self._max_bytes:
            message = "the client reads too slowly: its output fills the buffer"
            self.fail(QueueFullError(message, reason="SLOW_CLIENT"))
            self._on_overflow()
        self._wake(True)

    def fail(self, failure: PagewireError) -> None:
        """End the request with an error, after what waits already; the first failure stays."""
        if self._failure is None:
            self._failure = failure
            self._wake(True)

    async def take(self, until_s: float | None = None) -> list[Output]:
        """Wait for outputs and return all that wait, at most one an index.

        Args:
            until_s: Time of the event loop at which nothing is returned if nothing has come.

        Raises:
            PagewireError: The request failed and nothing waits any more.
        """
        await self.wait(until_s)
        return self.take_now()

    async def wait(self, until_s: float | None = None) -> None:
        """Wait until there is something to take.

        Args:
            until_s: Time of the event loop at which it returns if nothing has come.

        Raises:
            PagewireError: The request failed and nothing waits any more.
        """
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            # Not in a method of its own: each token of each stream waits here.
            self._waiter = asyncio.get_running_loop().create_future()
            if until_s is not None:
                self._set_timer(until_s)
            try:
                has_news = await self._waiter
            finally:
                self._waiter = None
                if self._timer is not None:
                    self._timer.unset()
            if not has_news:
                return

    def take_now(self) -> list[Output]:
        """Return all that waits, at most one an index."""
        outputs = list(self._waiting.values())
        self._waiting.clear()
        self._num_bytes = 0
        return outputs

    def close(self) -> None:
        """Let go of timers, of the producer and of the failure, whose traceback leads back here.

        Nobody takes any more, and what is put is dropped. Idempotent.
        """
        self._is_closed = True
        self._failure, self._on_overflow = None, _nothing
        if self._timer is not None:
            self._timer.close()

    def _set_timer(self, until_s: float) -> None:
        if self._timer is None:
            self._timer = LazyTimer(lambda: self._wake(False))
        self._timer.set(until_s)

    def _wake(self, has_news: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(has_news)


def _nothing() -> None:
    pass


def _num_bytes(output: Output) -> int:
    """About what it takes. Logprobs of prompts do not count: they come once and are bounded."""
    num_logprobs = sum(1 + len(each.top) for each in output.logprobs) if output.logprobs else 0
    return len(output.text) + _TOKEN_BYTES * len(output.token_ids) + _LOGPROB_BYTES * num_logprobs
