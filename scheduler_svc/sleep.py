"""The engine's sleep: the pause that it begins with, and the worker's memory that it frees.

Follows vLLM's rules: the engine is paused first; from level 1 on cached prefixes go with the KV,
and requests that are there and stay are preempted, to be computed anew; requests that come
meanwhile wait in the queue; waking up resumes. Knows no gRPC and no weights. On the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from pagewire.kit.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    ServiceUnavailableError,
)
from pagewire.kit.logs import get_logger
from scheduler_svc.executor import Executor, WorkerUnavailableError
from scheduler_svc.pause import PauseMode, PauseState

MAX_LEVEL = 2

log = get_logger("scheduler_svc.sleep")


class PausableEngine(Protocol):
    """What a sleep asks of the engine."""

    @property
    def pause_state(self) -> PauseState: ...
    async def pause(self, mode: PauseMode) -> None: ...
    def resume(self) -> None: ...
    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool: ...
    async def wait_settled(self) -> None: ...


class EngineSleep:
    """One engine's sleep; calls are taken one at a time."""

    def __init__(self, engine: PausableEngine, executor: Executor) -> None:
        self.level = 0
        """1: weights are in the worker's host memory. 2: they are dropped. 0: nothing sleeps."""
        self._engine = engine
        self._executor = executor
        self._lock = asyncio.Lock()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Pause the engine; from level 1 on, free its worker's memory.

        What fails after the pause leaves it on.

        Raises:
            PagewireError: There is no such level, no worker, or a resume came in between.
        """
        if not 0 <= level <= MAX_LEVEL:
            message = f"level must be 0 to {MAX_LEVEL}, not {level}"
            raise InvalidRequestError(message, reason="INVALID_SLEEP_LEVEL", field="level")
        async with self._lock:
            await self._engine.pause(mode)
            if level <= self.level:
                return
            await self._let_go_of_kv()
            await self._put_to_sleep(level)
            log.info("engine_sleeping", level=level)

    async def wake_up(self, tags: Collection[str]) -> bool:
        """Bring the worker's memory back, and end the pause once nothing sleeps any more.

        Returns:
            Whether something still sleeps.

        Raises:
            PagewireError: There is no worker, no such tag, or too little memory; the sleep goes on.
        """
        async with self._lock:
            if self.level > 0:
                try:
                    is_sleeping = await self._executor.wake_up(tags)
                except WorkerUnavailableError as error:
                    raise _no_worker(error) from error
                if is_sleeping:
                    return True
                self.level = 0
                log.info("engine_awake")
            self._engine.resume()
            return False

    async def reapply(self) -> None:
        """Have a worker that was claimed anew sleep as the one before it did.

        Raises:
            WorkerUnavailableError: It is lost already.
            PagewireError: It refused.
        """
        if self.level > 0:
            await self._executor.sleep(self.level)

    def check_awake(self) -> None:
        """Refuse what only an engine can do that is awake.

        Raises:
            FailedPreconditionError: It sleeps.
        """
        if self.level > 0:
            message = "the engine sleeps: call WakeUp"
            raise FailedPreconditionError(message, reason="ENGINE_SLEEPING")

    async def _put_to_sleep(self, level: int) -> None:
        # From now on no step is sent, whatever there is to tell.
        previous, self.level = self.level, level
        try:
            await self._executor.sleep(level)
        except BaseException as error:
            self.level = previous
            if isinstance(error, WorkerUnavailableError):
                raise _no_worker(error) from error
            raise

    async def _let_go_of_kv(self) -> None:
        """Have no request hold a block, and the worker know of none."""
        is_reset = self._engine.reset_prefix_cache(reset_running_requests=True)
        await self._engine.wait_settled()
        if not is_reset or self._engine.pause_state is PauseState.UNPAUSED:
            message = "the engine was resumed before it slept"
            raise FailedPreconditionError(message, reason="RESUMED")


def _no_worker(error: WorkerUnavailableError) -> ServiceUnavailableError:
    return ServiceUnavailableError(f"no worker can be asked now: {error}", reason="NO_WORKER")
