"""The group executor: several workers that run one model together, as ranks of one replica.

Claims as many free workers as there are ranks, has them load their parts at the same time, brings
them together, and gives every step to all of them. All ranks answer; the answer of the one that
has the sampled tokens counts. Whatever happens to one rank ends the group: the others may be in the
middle of a step with it. The next group is another generation, with a rendezvous of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pagewire.engine_config import EngineConfig
from pagewire.kit.logs import get_logger
from pagewire.kit.tasks import cancel_and_wait
from pagewire.kit.tls import PeerTls
from scheduler_svc.execute_stream import ExecuteStream
from scheduler_svc.executor import (
    Executor,
    KvCachePlan,
    StepFailedError,
    WorkerFacts,
    WorkerLostError,
    WorkerPulse,
    WorkerUnavailableError,
)
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.worker_claim import WorkerClaim
from scheduler_svc.worker_messages import decode_facts
from scheduler_svc.worker_seat import Claimant, Seat
from scheduler_svc.worker_targets import resolve_workers

T = TypeVar("T")

log = get_logger("scheduler_svc.worker_group")


class GroupExecutor(Executor):
    """The ranks of one replica, on workers out of a list of addresses."""

    def __init__(
        self,
        config: EngineConfig,
        workers: Sequence[str],
        scheduler_id: str,
        epoch: int,
        tls: PeerTls | None = None,
    ) -> None:
        super().__init__()
        self._claimant = Claimant(config, scheduler_id, epoch, tls)
        self._workers = tuple(workers)
        parallel = config.parallel
        self.num_stages = parallel.pipeline_parallel_size
        self._world_size = parallel.world_size
        # The first rank of the last stage; the others of that stage have the same tokens.
        self._output_rank = self._world_size - parallel.tensor_parallel_size
        self._generation = 0
        self._ranks: list[WorkerClaim] = []
        self._failure: str | None = None

    @property
    def lost_reason(self) -> str | None:
        if self._failure is not None:
            return self._failure
        for rank, claim in enumerate(self._ranks):
            if claim.stream is None:
                return "no workers"
            if claim.stream.lost_reason is not None:
                return f"rank {rank} ({claim.address}): {claim.stream.lost_reason}"
        return None if self._ranks else "no workers"

    def pulses(self) -> Sequence[WorkerPulse]:
        return [pulse for claim in self._ranks if (pulse := claim.pulse()) is not None]

    async def initialize(self) -> WorkerFacts:
        await self.close()
        self._failure = None
        self._ranks = await self._find_free()
        try:
            facts = await self._initialize_ranks()
        except BaseException:
            await self.close()
            raise
        return _facts_of_group(facts)

    async def allocate_kv_cache(self, plan: KvCachePlan) -> None:
        await _all([claim.open_stream(plan, self._on_lost) for claim in self._require_ranks()])

    async def send(self, output: SchedulerOutput) -> None:
        await self._tell_all(lambda stream: stream.send(output))

    async def send_masks(self, output: SchedulerOutput, masks: Mapping[int, bytes]) -> None:
        await self._tell_all(lambda stream: stream.send_masks(output, masks))

    async def receive(self) -> ModelRunnerOutput:
        try:
            answers = await _all([stream.receive() for stream in self._require_streams()])
        except StepFailedError as error:
            # The other ranks may still be in this step, waiting for the one that failed.
            raise self._fail(f"a rank failed the step: {error}") from error
        except WorkerLostError as error:
            raise self._fail(str(error)) from error
        return answers[self._output_rank]

    async def sleep(self, level: int) -> None:
        await _all([claim.sleep(level) for claim in self._require_ranks()])

    async def wake_up(self, tags: Collection[str]) -> bool:
        return any(await _all([claim.wake_up(tags) for claim in self._require_ranks()]))

    async def close(self) -> None:
        ranks, self._ranks = self._ranks, []
        await _all([claim.close() for claim in ranks])

    async def _find_free(self) -> list[WorkerClaim]:
        """Connect to as many workers as there are ranks, in the order of addresses.

        Raises:
            WorkerUnavailableError: There are too few.
        """
        addresses = await resolve_workers(self._workers)
        tries = await asyncio.gather(*map(self._connect, addresses), return_exceptions=True)
        free, again = _one_a_process(found for found in tries if isinstance(found, tuple))
        await _all([claim.close() for claim in again])
        errors = [found for found in tries if isinstance(found, BaseException)]
        fatal = [error for error in errors if not isinstance(error, WorkerUnavailableError)]
        if not fatal and len(free) >= self._world_size:
            await _all([claim.close() for claim in free[self._world_size :]])
            return free[: self._world_size]
        await _all([claim.close() for claim in free])
        if fatal:
            raise fatal[0]
        reasons = "; ".join(map(str, errors))
        raise WorkerUnavailableError(
            f"{self._world_size} workers are needed,"
            f" {len(free)} of {len(addresses) - len(again)} are free"
            + (f": {reasons}" if reasons else "")
        )

    async def _connect(self, address: str) -> tuple[WorkerClaim, int]:
        """Return a worker that is free, and which process it is."""
        try:
            claim = await WorkerClaim.connect(address, self._claimant.tls)
        except WorkerUnavailableError as error:
            raise WorkerUnavailableError(f"{address}: {error}") from error
        try:
            status = await claim.status()
            if status.holder not in ("", self._claimant.scheduler_id):
                raise WorkerUnavailableError(f"{address}: it serves scheduler {status.holder}")
        except BaseException:
            await claim.close()
            raise
        return claim, status.epoch

    async def _initialize_ranks(self) -> list[WorkerFacts]:
        """Have all ranks load at the same time, once rank 0 has said where they meet."""
        self._generation += 1
        first = Seat(0, self._world_size, self._generation)
        opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_rendezvous(rendezvous: str) -> None:
            if not opened.done():
                opened.set_result(rendezvous)

        async def initialize(rank: int, claim: WorkerClaim) -> WorkerFacts:
            if rank == 0:
                result = await claim.initialize(self._claimant, first, on_rendezvous)
                if not opened.done():
                    raise WorkerUnavailableError("rank 0 did not say where the ranks meet")
            else:
                seat = replace(first, rank=rank, rendezvous=await asyncio.shield(opened))
                result = await claim.initialize(self._claimant, seat)
            return decode_facts(result)

        try:
            facts = await _all([initialize(rank, c) for rank, c in enumerate(self._ranks)])
        finally:
            opened.cancel()
        log.info(
            "group_ready",
            generation=self._generation,
            workers=[claim.address for claim in self._ranks],
        )
        return facts

    async def _tell_all(self, tell: Callable[[ExecuteStream], Awaitable[None]]) -> None:
        try:
            for stream in self._require_streams():
                await tell(stream)
        except WorkerLostError as error:
            raise self._fail(str(error)) from error

    def _require_ranks(self) -> list[WorkerClaim]:
        if not self._ranks:
            raise WorkerUnavailableError("not initialized")
        return self._ranks

    def _require_streams(self) -> list[ExecuteStream]:
        if (reason := self.lost_reason) is not None:
            raise WorkerLostError(reason)
        return [claim.stream for claim in self._ranks if claim.stream is not None]

    def _fail(self, reason: str) -> WorkerLostError:
        """Give the group up."""
        self._failure = self._failure or self.lost_reason or reason
        return WorkerLostError(self._failure)

    def _on_lost(self) -> None:
        self.on_lost()


def _one_a_process(
    found: Iterable[tuple[WorkerClaim, int]],
) -> tuple[list[WorkerClaim], list[WorkerClaim]]:
    """Tell workers from further addresses of the same ones: a name may have two of one process.

    Args:
        found: Each with its epoch; 0 is nobody's.
    """
    first, again, seen = list[WorkerClaim](), list[WorkerClaim](), set[int]()
    for claim, epoch in found:
        (again if epoch in seen else first).append(claim)
        seen |= {epoch} - {0}
    return first, again


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at the same time; the first failure ends the others and is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failure = _failure_of(tasks)
        if failure is not None:
            raise failure
        return [task.result() for task in tasks]
    finally:
        await cancel_and_wait(*(task for task in tasks if not task.done()))
        # What is raised leads back to this frame, which must not lead to it.
        tasks, failure = [], None


def _failure_of(tasks: Iterable[asyncio.Task[Any]]) -> BaseException | None:
    """What says most of all that has failed; None: nothing has."""
    errors = [error for task in tasks if task.done() and (error := task.exception())]
    # What no other try can mend says more than that a peer was not there.
    return min(errors, key=lambda error: isinstance(error, WorkerUnavailableError), default=None)


def _facts_of_group(facts: Sequence[WorkerFacts]) -> WorkerFacts:
    """The facts of the whole model: KV blocks are as many as the rank with the least room has."""
    return replace(
        facts[0],
        available_kv_cache_bytes=min(fact.available_kv_cache_bytes for fact in facts),
        bytes_per_block=max(fact.bytes_per_block for fact in facts),
    )
