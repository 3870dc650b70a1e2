"""The right to execute steps on the device, held by one Execute stream.

Owns the bounded queue of steps whose answers are due, and the masks that they wait for. The worker
makes it and ends it; the session submits steps and masks and takes outcomes in order. Used on the
event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque

from pagewire.kit.errors import InvalidRequestError, PagewireError
from worker_svc.device_thread import DeviceThread
from worker_svc.grammar_masks import MASKS_TIMEOUT_S, DueMasks, GrammarMasks, MaskSource, no_masks
from worker_svc.lease import Lease
from worker_svc.metrics import StepCounters
from worker_svc.step import SchedulerOutput
from worker_svc.step_executor import StepDone, StepExecutor, StepFailure

MAX_QUEUED_STEPS = 16
"""A scheduler keeps at most pipeline_parallel_size + 1 steps in flight."""

LAST_MASKS_TIMEOUT_S = 2.0
"""How long the last step of a stream that the worker ends waits for its masks."""

StepOutcome = StepDone | StepFailure


class Execution:
    """Steps of one stream, in order.

    Attributes:
        stop: Set when the worker wants the stream to end: it drains, or its scheduler came anew.
    """

    def __init__(
        self,
        lease: Lease,
        executor: StepExecutor,
        device: DeviceThread,
        masks_timeout_s: float = MASKS_TIMEOUT_S,
        counters: StepCounters | None = None,
    ) -> None:
        self.lease = lease
        self.executor = executor
        self.stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._device = device
        self._queued: deque[asyncio.Future[StepOutcome]] = deque()
        self._masks = DueMasks(masks_timeout_s)
        self._counters = counters or StepCounters()

    @property
    def is_idle(self) -> bool:
        """No step is queued or runs, and the worker knows no request."""
        return self.executor.num_requests == 0 and all(step.done() for step in self._queued)

    def submit(self, step: SchedulerOutput) -> asyncio.Future[StepOutcome]:
        """Queue a step behind those that were submitted before.

        Raises:
            PagewireError: Too many steps are in flight.
        """
        self._check_room()
        masks = self._expect_masks(step)
        return self._queue(self._device.submit(lambda: self.executor.execute(step, masks)))

    def submit_rejected(
        self, step: SchedulerOutput, error: PagewireError
    ) -> asyncio.Future[StepOutcome]:
        """Queue the failure of a step that cannot be read, in its place among the others."""
        self._check_room()
        self._expect_masks(step)
        return self._queue(
            self._device.submit(lambda: self.executor.reject(step, error.reason, error.message))
        )

    def put_masks(self, masks: GrammarMasks) -> None:
        """Hand masks to the step that they are for.

        Raises:
            InvalidRequestError: The step is not known, has no masked rows, or has its masks; not
                after a stop, when that step may have been dropped.
        """
        if not self.stop.is_set() or self._masks.is_due(masks.step):
            self._masks.put(masks)

    def end_masks(self) -> None:
        """No more masks come: steps that still wait for theirs fail."""
        self._masks.close()

    def keep_first(self) -> None:
        """Drop all steps but the one that runs, or is next to run; their futures are cancelled.

        Its masks are mostly on their way; if not, the scheduler may not send them any more.
        """
        self._masks.keep_oldest()
        asyncio.get_running_loop().call_later(LAST_MASKS_TIMEOUT_S, self.end_masks)
        for future in [future for future in self._queued if not future.done()][1:]:
            future.cancel()

    def end(self) -> None:
        """Drop every step that has not begun, end every wait for masks, wake who awaits this."""
        self.end_masks()
        for future in self._queued:
            future.cancel()
        self._ended.set()

    async def stop_and_wait(self, timeout_s: float) -> bool:
        """Ask the stream to end; says whether it did within `timeout_s`."""
        self.stop.set()
        try:
            # Not wait_for: in Python 3.11 it may swallow a cancellation.
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def _expect_masks(self, step: SchedulerOutput) -> MaskSource:
        return self._masks.expect(step.step) if step.masked_handles else no_masks

    def _check_room(self) -> None:
        while self._queued and self._queued[0].done():
            self._queued.popleft()
        if len(self._queued) >= MAX_QUEUED_STEPS:
            raise InvalidRequestError(
                f"more than {MAX_QUEUED_STEPS} steps in flight", reason="TOO_MANY_STEPS"
            )

    def _queue(self, future: asyncio.Future[StepOutcome]) -> asyncio.Future[StepOutcome]:
        self._queued.append(future)
        future.add_done_callback(self._counters.count)
        return future
