"""This worker's place among the ranks of a replica, as the worker's event loop sees it.

Owns the membership, what it does on the device thread, and what becomes of a worker that cannot
leave its group. With one rank it does nothing. Knows no torch: a membership is made where torch
is imported, on the device thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

from pagewire.engine_config import EngineConfig
from pagewire.kit.lifecycle import exit_now
from pagewire.kit.logs import get_logger
from worker_svc.device_thread import DeviceThread
from worker_svc.parallel.fit import check_model_fits
from worker_svc.parallel.layout import ONE_RANK, RankLayout
from worker_svc.step import Runner

FREE_TIMEOUT_S = 5.0
"""How long the device thread may take to come back after the end of its group."""
STUCK_EXIT_CODE = 1

log = get_logger("worker_svc.group_member")


class Membership(Protocol):
    """A rank's place in its replica; on the device thread."""

    def open(self) -> str: ...
    def join(self, rendezvous: str, cancelled: threading.Event) -> None: ...
    def leave(self) -> None: ...
    def make_runner(self, config: EngineConfig) -> Runner: ...


MembershipFactory = Callable[[RankLayout, str], Membership]


def exit_stuck() -> NoReturn:
    """End this process at once."""
    exit_now(STUCK_EXIT_CODE)


class GroupMember:
    """Takes a place, meets the other ranks, leaves them; any number of times."""

    def __init__(
        self,
        device: DeviceThread,
        host: str,
        factory: MembershipFactory,
        exit_stuck: Callable[[], object],
    ) -> None:
        """Prepare.

        Args:
            device: Runs the membership.
            host: Address of this machine that other ranks reach.
            factory: Makes a membership, on the device thread.
            exit_stuck: Ends this process, for its supervisor to start it again.
        """
        self.layout = ONE_RANK
        self._device = device
        self._host = host
        self._factory = factory
        self._exit_stuck = exit_stuck
        self._membership: Membership | None = None
        self._cancelled = threading.Event()

    async def take_place(self, layout: RankLayout, config: EngineConfig) -> str | None:
        """Be that rank from now on; what was connected before is closed.

        Returns:
            On rank 0 of several, where the others are to come.

        Raises:
            InvalidRequestError: The model cannot be split over so many ranks.
        """
        self._cancelled = threading.Event()
        if layout.world_size > 1:
            await self._device.run(lambda: check_model_fits(config, layout))
        if layout != self.layout:
            await self._replace(layout)
        membership = self._membership
        if membership is None or layout.rank > 0:
            return None
        return await self._device.run(membership.open)

    async def join(self, rendezvous: str) -> None:
        """Wait for the other ranks; nothing with one.

        Raises:
            PagewireError: They did not come, or `cancel` was called.
        """
        membership, cancelled = self._membership, self._cancelled
        if membership is not None:
            await self._device.run(lambda: membership.join(rendezvous, cancelled))
            log.info("group_joined", rank=self.layout.rank, world_size=self.layout.world_size)

    def cancel(self) -> None:
        """Nobody waits for `join` any more."""
        self._cancelled.set()

    async def leave(self) -> None:
        """Leave the group once the step that runs is done; if it is not in time, exit.

        A rank may wait in the middle of a step for one that hangs, and nothing else ends that.
        """
        membership = self._membership
        if membership is None:
            return
        try:
            async with asyncio.timeout(FREE_TIMEOUT_S):
                await self._device.run(membership.leave)
        except TimeoutError:
            log.error("device_stuck_in_group", waited_s=FREE_TIMEOUT_S, rank=self.layout.rank)
            self._exit_stuck()

    def make_runner(self, config: EngineConfig) -> Runner:
        """A runner of this rank; with several ranks only."""
        if self._membership is None:
            raise RuntimeError("this worker is the only rank")
        return self._membership.make_runner(config)

    async def _replace(self, layout: RankLayout) -> None:
        previous, self._membership = self._membership, None
        if previous is not None:
            await self._device.run(previous.leave)
        self.layout = layout
        if layout.world_size > 1:
            self._membership = await self._device.run(lambda: self._factory(layout, self._host))
