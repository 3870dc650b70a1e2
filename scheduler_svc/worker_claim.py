"""One worker that a scheduler claims: its channel, its lease, its Execute stream.

Knows how to ask a worker what it does, have it load its part of a model and open its stream. Which
workers to claim, and how many, is `worker_client`'s and `worker_group`'s; `worker_targets` finds
their addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc

from pagewire import wire
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import from_rpc_error
from pagewire.kit.heartbeat import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S
from pagewire.kit.logs import get_logger
from pagewire.kit.tasks import cancel_and_wait
from pagewire.kit.tls import PeerTls
from pagewire.v1 import worker_pb2, worker_pb2_grpc
from scheduler_svc.execute_stream import ExecuteStream
from scheduler_svc.executor import KvCachePlan, WorkerPulse, WorkerUnavailableError
from scheduler_svc.worker_seat import Claimant, Seat

T = TypeVar("T")

CONNECT_TIMEOUT_S = 2.0
STATUS_TIMEOUT_S = 5.0
INITIALIZE_SILENCE_S = 300.0
"""Longest silence between progress messages while the model loads."""
ALLOCATE_TIMEOUT_S = 300.0
SLEEP_TIMEOUT_S = 60.0
WAKE_UP_TIMEOUT_S = 1800.0
"""Weights may have to be read again; the Execute stream tells whether the worker lives."""

# The worker is not there, not yet, or not any more.
_TRY_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
# It serves somebody else; or its connection was torn down, which the transport tells in many ways.
_TRY_AGAIN_REASONS = ("LEASE_HELD", "LEASE_LOST", "PEER_FAILED")

# The name that these lines have always had.
log = get_logger("scheduler_svc.worker_client")


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker says of itself before it is claimed."""

    holder: str
    """Id of the scheduler that it serves; empty: none."""
    epoch: int
    """Which process it is: random, new at each start; 0: it does not say."""


class WorkerClaim:
    """A connection to one worker. `connect`, `initialize`, `open_stream`, `close`."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.stream: ExecuteStream | None = None
        self._channel = channel
        self._stub: worker_pb2_grpc.WorkerServiceAsyncStub = worker_pb2_grpc.WorkerServiceStub(
            channel
        )
        self._lease = worker_pb2.Lease()
        self._seat = Seat()

    @classmethod
    async def connect(cls, address: str, tls: PeerTls | None = None) -> WorkerClaim:
        """Connect to a worker, in plain text unless `tls` says how else.

        Raises:
            WorkerUnavailableError: Nobody answers there.
        """
        channel = open_channel(address, tls=tls)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await channel.channel_ready()
        except TimeoutError as error:
            await channel.close()
            raise WorkerUnavailableError("nobody answers there") from error
        except BaseException:
            await channel.close()
            raise
        return cls(address, channel)

    async def status(self) -> WorkerStatus:
        """Ask which process it is and whom it serves.

        Raises:
            WorkerUnavailableError: It does not say.
        """
        try:
            status = await self._stub.GetStatus(
                worker_pb2.GetStatusRequest(), timeout=STATUS_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise unavailable_or_fatal(error) from error
        return WorkerStatus(status.lease_holder, status.worker_epoch)

    async def initialize(
        self,
        claimant: Claimant,
        seat: Seat,
        on_rendezvous: Callable[[str], object] = lambda rendezvous: None,
    ) -> worker_pb2.InitializeResult:
        """Get the lease, and have the worker load its part of the model.

        Args:
            claimant: Whose lease it is to be.
            seat: The worker's place.
            on_rendezvous: Called when rank 0 says where the others are to come.

        Raises:
            WorkerUnavailableError: Try again later.
            PagewireError: It refused the configuration.
        """
        self._seat = seat
        call = self._stub.Initialize(
            worker_pb2.InitializeRequest(
                lease=worker_pb2.Lease(scheduler_id=claimant.scheduler_id, epoch=claimant.epoch),
                engine_config=wire.engine_config_to_proto(claimant.config),
                config_digest=claimant.config.digest(),
                rank=seat.rank,
                world_size=seat.world_size,
                group_generation=seat.group_generation,
                rendezvous=seat.rendezvous,
            )
        )
        try:
            result = await self._while_alive(self._read_result(call, on_rendezvous))
        except grpc.aio.AioRpcError as error:
            raise unavailable_or_fatal(error) from error
        finally:
            call.cancel()
        self._lease = result.lease
        log.info(
            "worker_initialized",
            worker=self.address,
            rank=seat.rank,
            device=result.device,
            dtype=result.dtype,
            attention_backend=result.attention_backend,
            available_kv_cache_bytes=result.available_kv_cache_bytes,
            reused_weights=result.reused_weights,
        )
        return result

    async def open_stream(self, plan: KvCachePlan, on_lost: Callable[[], None]) -> None:
        """Allocate the KV cache and open the Execute stream.

        Raises:
            WorkerUnavailableError: Try again from `initialize`.
            PagewireError: It does not fit.
        """
        try:
            await self._while_alive(self._allocate(plan))
            self.stream = await ExecuteStream.open(
                self._stub, self._lease, on_lost, plan.num_groups, self._seat.group_generation
            )
        except grpc.aio.AioRpcError as error:
            raise unavailable_or_fatal(error) from error

    def pulse(self) -> WorkerPulse | None:
        """What the worker's heartbeats told last; None: nothing yet."""
        pulse = None if self.stream is None else self.stream.pulse
        if pulse is None or pulse.peer is None:
            return None
        return WorkerPulse(self.address, self._seat.rank, pulse.round_trip_ns, pulse.peer)

    async def sleep(self, level: int) -> None:
        """Free the worker's memory; see `Executor.sleep`."""
        try:
            await self._stub.Sleep(
                worker_pb2.WorkerServiceSleepRequest(lease=self._lease, level=level),
                timeout=SLEEP_TIMEOUT_S,
            )
        except grpc.aio.AioRpcError as error:
            raise unavailable_or_fatal(error) from error

    async def wake_up(self, tags: Collection[str]) -> bool:
        """Bring the worker's memory back; see `Executor.wake_up`."""
        try:
            response = await self._stub.WakeUp(
                worker_pb2.WorkerServiceWakeUpRequest(lease=self._lease, tags=tags),
                timeout=WAKE_UP_TIMEOUT_S,
            )
        except grpc.aio.AioRpcError as error:
            raise unavailable_or_fatal(error) from error
        return response.is_sleeping

    async def close(self) -> None:
        """Give the worker back; idempotent."""
        if self.stream is not None:
            await self.stream.close()
        await self._channel.close()

    async def _allocate(self, plan: KvCachePlan) -> None:
        await self._stub.AllocateKvCache(
            worker_pb2.AllocateKvCacheRequest(
                lease=self._lease,
                num_blocks=plan.num_blocks,
                block_size=plan.block_size,
                max_model_len=plan.max_model_len,
            ),
            timeout=ALLOCATE_TIMEOUT_S,
        )

    async def _while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what may take long; a worker that stops answering meanwhile is lost.

        There is no Execute stream yet, whose heartbeats would tell.

        Raises:
            WorkerUnavailableError: It is silent.
        """
        working = asyncio.create_task(work, name="worker-claim")
        watching = asyncio.create_task(self._watch(), name="worker-claim-watch")
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                watching.result()  # raises
            return await working
        finally:
            await cancel_and_wait(*(task for task in (working, watching) if not task.done()))
            # What is raised leads back to this frame, which must not lead to it.
            del working, watching

    async def _watch(self) -> NoReturn:
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            try:
                await self._stub.GetStatus(
                    worker_pb2.GetStatusRequest(), timeout=HEARTBEAT_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                raise WorkerUnavailableError("silent while it was claimed") from error

    async def _read_result(
        self,
        call: grpc.aio.UnaryStreamCall[worker_pb2.InitializeRequest, worker_pb2.InitializeResponse],
        on_rendezvous: Callable[[str], object],
    ) -> worker_pb2.InitializeResult:
        result: worker_pb2.InitializeResult | None = None
        try:
            while True:
                async with asyncio.timeout(INITIALIZE_SILENCE_S):
                    message = await call.read()
                if not isinstance(message, worker_pb2.InitializeResponse):
                    break
                if message.HasField("result"):
                    result = message.result
                elif message.HasField("rendezvous"):
                    on_rendezvous(message.rendezvous.rendezvous)
                else:
                    _log_progress(self.address, message.progress)
        except TimeoutError as error:
            raise WorkerUnavailableError("silent while loading") from error
        if result is None:
            raise WorkerUnavailableError("it ended Initialize without a result")
        return result


def unavailable_or_fatal(error: grpc.aio.AioRpcError) -> Exception:
    """Whether another try may help, as an exception."""
    known = from_rpc_error(error)
    if error.code() in _TRY_AGAIN or known.reason in _TRY_AGAIN_REASONS:
        return WorkerUnavailableError(f"{error.code().name}: {error.details()}")
    return known


def _log_progress(address: str, progress: worker_pb2.InitializeProgress) -> None:
    log.info(
        "worker_progress",
        worker=address,
        stage=progress.stage,
        done=progress.done,
        total=progress.total,
        unit=progress.unit,
    )
