"""Runs batches through a gateway: a bounded number at a time, each on a thread that waits for it.

A batch whose call fails is asked for again in halves, without what has come already, until the
prompt that is to blame stands alone; where the gateway is full or away, it is asked for again after
a pause. Draws are functions of (seed, position), so asking again changes nothing that has a seed.
The caller's thread gets results as they come, and may be interrupted at any time.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import grpc

from pagewire.client.errors import incomplete_answer, readable
from pagewire.client.sync import Client
from pagewire.client.types import RequestOutput
from pagewire.kit.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    PagewireError,
    PermissionDeniedError,
    QueueFullError,
    ServiceUnavailableError,
    UnauthenticatedError,
    UnimplementedError,
)
from pagewire.offline.batches import Batch, BatchResult, CallOptions, batch_message

# Wrong for every prompt: the first one ends the whole call.
_FATAL = (UnauthenticatedError, PermissionDeniedError, UnimplementedError, NotFoundError)
_LATER = (QueueFullError, ServiceUnavailableError)
_PAUSE_S = 1.0
_MAX_PAUSE_S = 10.0

Result: TypeAlias = tuple[int, RequestOutput | PagewireError]
"""A prompt's place in the call, and what became of it."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How hard a run tries."""

    max_calls: int
    """Batches at a time."""
    timeout_s: float | None = None
    """Of one batch."""
    patience_s: float = 180.0
    """Seconds in a row that a batch is asked for again where the gateway is full or away."""


def run_batches(
    client: Client,
    batches: Iterable[Batch],
    call: CallOptions,
    limits: RunLimits,
    is_alive: Callable[[], bool] = lambda: True,
) -> Generator[Result]:
    """Yield the result of every prompt as it comes; leaving early cancels the rest.

    Args:
        client: Of the gateway.
        batches: What to run.
        call: Options of all of them.
        limits: See `RunLimits`.
        is_alive: Whether it makes sense to wait for the gateway.

    Raises:
        PagewireError: What is wrong is wrong for every prompt.
    """
    waiting = deque(batches)
    num_prompts = sum(len(batch.prompts) for batch in waiting)
    run = _Run(client, waiting, call, limits, is_alive)
    num_threads = min(limits.max_calls, num_prompts)
    threads = [
        threading.Thread(target=run.work, name=f"pagewire-batch-{i}", daemon=True)
        for i in range(num_threads)
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in range(num_prompts):
            yield run.next_result()
    finally:
        run.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


class _Run:
    """One call of `LLM`. `work` runs in several threads, the rest in the caller's.

    Each of `waiting`'s batches is owned by the thread that took it, until all of its prompts have
    a result. `_lock` guards `_waiting`, `_num_working`, `_calls` and `_is_stopped`.
    """

    def __init__(
        self,
        client: Client,
        waiting: deque[Batch],
        call: CallOptions,
        limits: RunLimits,
        is_alive: Callable[[], bool],
    ) -> None:
        self._client = client
        self._waiting = waiting
        self._call = call
        self._limits = limits
        self._is_alive = is_alive
        # Bounded by the number of prompts: each has one result, and there is at most one failure a
        # thread.
        self._results: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._calls: set[Any] = set()
        self._stopped = threading.Event()
        self._request_id = f"llm-{secrets.token_hex(8)}"

    def next_result(self) -> Result:
        """Wait for a result.

        Raises:
            PagewireError: What is wrong is wrong for every prompt.
        """
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self) -> None:
        """Cancel what runs, and let the threads end."""
        with self._lock:
            self._stopped.set()
            self._waiting.clear()
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def work(self) -> None:
        """Take batches until there are none; a thread's whole life."""
        try:
            while (batch := self._take()) is not None:
                self._finish(batch)
        except BaseException as exc:
            self._results.put(exc)

    def _take(self) -> Batch | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _finish(self, batch: Batch) -> None:
        """Bring every prompt of the batch to a result."""
        todo = [batch]
        while todo and not self._stopped.is_set():
            batch = todo.pop()
            missing, error = self._ask_patiently(batch)
            if error is None or self._stopped.is_set():
                continue
            if isinstance(error, _FATAL):
                raise error
            if len(missing.prompts) > 1 and self._may_be_one_prompts_fault(error):
                todo += reversed(missing.halves())
            else:
                for prompt in missing.prompts:
                    self._results.put((prompt.index, error))

    def _ask_patiently(self, batch: Batch) -> tuple[Batch, PagewireError | None]:
        """Ask; where the gateway is full or away, ask again for what is missing.

        Returns:
            The prompts without a result, and why.
        """
        give_up_s = time.monotonic() + self._limits.patience_s
        pause_s = _PAUSE_S
        while True:
            missing, error = self._ask(batch)
            if not isinstance(error, _LATER) or not self._is_alive():
                return missing, error
            now = time.monotonic()
            if len(missing.prompts) < len(batch.prompts):  # it got somewhere
                give_up_s, pause_s, batch = now + self._limits.patience_s, _PAUSE_S, missing
            if now >= give_up_s or self._stopped.wait(error.retry_after_s or pause_s):
                return missing, error
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _ask(self, batch: Batch) -> tuple[Batch, PagewireError | None]:
        """Ask once and pass on what comes."""
        result = BatchResult(batch, self._call.n, self._request_id)
        error: PagewireError | None = None
        try:
            message = batch_message(batch, self._call)
            for response in self._start(message):
                for whole in result.take(response):
                    self._results.put(whole)
        except PagewireError as exc:
            error = exc
        except grpc.RpcError as exc:
            error = readable(cast(grpc.Call, exc), self._client.target)
        missing = result.missing()
        if error is None and missing.prompts:
            error = incomplete_answer(self._client.target)
        return missing, error if missing.prompts else None

    def _start(self, message: Any) -> Iterator[Any]:
        """Yield the responses of a call that `stop` can cancel."""
        with self._lock:
            if self._stopped.is_set():
                return
            call = self._client.generate_batch(message, self._limits.timeout_s)
            self._calls.add(call)
        try:
            yield from call
        finally:
            with self._lock:
                self._calls.discard(call)

    def _may_be_one_prompts_fault(self, error: PagewireError) -> bool:
        """Whether the other prompts of the batch might do well without the one to blame."""
        if isinstance(error, InvalidRequestError):
            # A parameter is wrong for all alike, unless its bound depends on the prompt's length
            # or on the number of prompts.
            field = error.field or "prompt"
            about_prompts = field.startswith(("prompt", "messages", "max_tokens", "truncate"))
            return about_prompts or error.reason in ("TOO_MANY_OUTPUTS", "MESSAGE_TOO_LARGE")
        if isinstance(error, DeadlineExceededError):  # the gateway's bound, not the caller's
            return self._limits.timeout_s is None
        return isinstance(error, InternalError)
