"""The gRPC executor: chooses a worker among addresses, claims it by lease, has it load the model.

It does not know requests or scheduling; the steps themselves go through `execute_stream`. On one
event loop; `close` leaves no task and no channel behind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pagewire.engine_config import EngineConfig
from pagewire.kit.tls import PeerTls
from scheduler_svc.execute_stream import ExecuteStream
from scheduler_svc.executor import (
    Executor,
    KvCachePlan,
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


class GrpcExecutor(Executor):
    """One worker out of a list of addresses; another one after it is lost."""

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
        self._claim: WorkerClaim | None = None

    @property
    def lost_reason(self) -> str | None:
        if self._claim is None or self._claim.stream is None:
            return "no worker"
        return self._claim.stream.lost_reason

    def pulses(self) -> Sequence[WorkerPulse]:
        pulse = None if self._claim is None else self._claim.pulse()
        return () if pulse is None else (pulse,)

    async def initialize(self) -> WorkerFacts:
        await self.close()
        failures = []
        for address in await resolve_workers(self._workers):
            try:
                return await self._initialize_at(address)
            except WorkerUnavailableError as error:
                failures.append(f"{address}: {error}")
        raise WorkerUnavailableError("; ".join(failures) or "no address")

    async def allocate_kv_cache(self, plan: KvCachePlan) -> None:
        await self._require_claim().open_stream(plan, self._on_lost)

    async def send(self, output: SchedulerOutput) -> None:
        await self._require_stream().send(output)

    async def send_masks(self, output: SchedulerOutput, masks: Mapping[int, bytes]) -> None:
        await self._require_stream().send_masks(output, masks)

    async def receive(self) -> ModelRunnerOutput:
        return await self._require_stream().receive()

    async def sleep(self, level: int) -> None:
        await self._require_claim().sleep(level)

    async def wake_up(self, tags: Collection[str]) -> bool:
        return await self._require_claim().wake_up(tags)

    async def close(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            await claim.close()

    async def _initialize_at(self, address: str) -> WorkerFacts:
        claim = await WorkerClaim.connect(address, self._claimant.tls)
        try:
            result = await claim.initialize(self._claimant, Seat())
        except BaseException:
            await claim.close()
            raise
        self._claim = claim
        return decode_facts(result)

    def _require_claim(self) -> WorkerClaim:
        if self._claim is None:
            raise WorkerUnavailableError("not initialized")
        return self._claim

    def _require_stream(self) -> ExecuteStream:
        if self._claim is None or self._claim.stream is None:
            raise WorkerLostError("no worker")
        return self._claim.stream

    def _on_lost(self) -> None:
        self.on_lost()
