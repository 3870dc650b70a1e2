"""The gRPC executor: chooses a worker among addresses, claims it by lease, has it load the model.

It does not know requests or scheduling; the steps themselves go through `execute_stream`. On one
event loop; `close` leaves no task and no channel behind.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from pagewire import wire
from pagewire.engine_config import EngineConfig
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import (
    from_rpc_error,
)
from pagewire.kit.logs import get_logger
from pagewire.v1 import worker_pb2, worker_pb2_grpc
from scheduler_svc.execute_stream import ExecuteStream
from scheduler_svc.executor import (
    Executor,
    KvCachePlan,
    WorkerFacts,
    WorkerLostError,
    WorkerUnavailableError,
)
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.worker_messages import decode_facts

CONNECT_TIMEOUT_S = 2.0
INITIALIZE_SILENCE_S = 300.0
"""Longest silence between progress messages while the model loads."""
ALLOCATE_TIMEOUT_S = 300.0

# The worker is not there, not yet, or not any more.
_TRY_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
# It serves somebody else.
_LEASE_REASONS = ("LEASE_HELD", "LEASE_LOST")

log = get_logger("scheduler_svc.worker_client")


@dataclass(slots=True)
class _Claim:
    """A worker that granted its lease."""

    address: str
    channel: grpc.aio.Channel
    stub: worker_pb2_grpc.WorkerServiceAsyncStub
    lease: worker_pb2.Lease
    stream: ExecuteStream | None = None


class GrpcExecutor(Executor):
    """One worker out of a list of addresses; another one after it is lost."""

    def __init__(
        self, config: EngineConfig, workers: Sequence[str], scheduler_id: str, epoch: int
    ) -> None:
        super().__init__()
        self._config = config
        self._workers = tuple(workers)
        self._scheduler_id = scheduler_id
        self._epoch = epoch
        self._claim: _Claim | None = None

    @property
    def lost_reason(self) -> str | None:
        if self._claim is None or self._claim.stream is None:
            return "no worker"
        return self._claim.stream.lost_reason

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
        claim = self._claim
        if claim is None:
            raise WorkerUnavailableError("not initialized")
        try:
            await claim.stub.AllocateKvCache(
                worker_pb2.AllocateKvCacheRequest(
                    lease=claim.lease,
                    num_blocks=plan.num_blocks,
                    block_size=plan.block_size,
                    max_model_len=plan.max_model_len,
                ),
                timeout=ALLOCATE_TIMEOUT_S,
            )
            claim.stream = await ExecuteStream.open(
                claim.stub, claim.lease, self._on_lost, plan.num_groups
            )
        except grpc.aio.AioRpcError as error:
            raise _unavailable_or_fatal(error) from error

    async def send(self, output: SchedulerOutput) -> None:
        await self._require_stream().send(output)

    async def send_masks(self, output: SchedulerOutput, masks: Mapping[int, bytes]) -> None:
        await self._require_stream().send_masks(output, masks)

    async def receive(self) -> ModelRunnerOutput:
        return await self._require_stream().receive()

    async def close(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            if claim.stream is not None:
                await claim.stream.close()
            await claim.channel.close()

    async def _initialize_at(self, address: str) -> WorkerFacts:
        channel = open_channel(address)
        try:
            await _wait_ready(channel)
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            result = await self._load(address, stub)
        except grpc.aio.AioRpcError as error:
            await channel.close()
            raise _unavailable_or_fatal(error) from error
        except BaseException:
            await channel.close()
            raise
        self._claim = _Claim(address, channel, stub, result.lease)
        return decode_facts(result)

    async def _load(
        self, address: str, stub: worker_pb2_grpc.WorkerServiceAsyncStub
    ) -> worker_pb2.InitializeResult:
        call = stub.Initialize(
            worker_pb2.InitializeRequest(
                lease=worker_pb2.Lease(scheduler_id=self._scheduler_id, epoch=self._epoch),
                engine_config=wire.engine_config_to_proto(self._config),
                config_digest=self._config.digest(),
                rank=0,
                world_size=self._config.parallel.world_size,
            )
        )
        result: worker_pb2.InitializeResult | None = None
        try:
            while True:
                async with asyncio.timeout(INITIALIZE_SILENCE_S):
                    message = await call.read()
                if not isinstance(message, worker_pb2.InitializeResponse):
                    break
                if message.HasField("result"):
                    result = message.result
                else:
                    _log_progress(address, message.progress)
        except TimeoutError as error:
            raise WorkerUnavailableError("silent while loading") from error
        finally:
            call.cancel()
        if result is None:
            raise WorkerUnavailableError("it ended Initialize without a result")
        log.info(
            "worker_initialized",
            worker=address,
            device=result.device,
            dtype=result.dtype,
            attention_backend=result.attention_backend,
            available_kv_cache_bytes=result.available_kv_cache_bytes,
            reused_weights=result.reused_weights,
        )
        return result

    def _require_stream(self) -> ExecuteStream:
        if self._claim is None or self._claim.stream is None:
            raise WorkerLostError("no worker")
        return self._claim.stream

    def _on_lost(self) -> None:
        self.on_lost()


async def resolve_workers(targets: Sequence[str]) -> list[str]:
    """One address a worker: a DNS name stands for all addresses behind it.

    A claim is several calls to the same process, so a channel must not choose among addresses.

    Raises:
        WorkerUnavailableError: A name can't be resolved now.
    """
    addresses: list[str] = []
    loop = asyncio.get_running_loop()
    for target in targets:
        if not target.startswith("dns:"):
            addresses.append(target)
            continue
        host, _, port = target.rpartition("/")[2].rpartition(":")
        try:
            found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            raise WorkerUnavailableError(f"{target} can't be resolved") from error
        for family, _, _, _, sockaddr in found:
            ip = f"[{sockaddr[0]}]" if family == socket.AF_INET6 else sockaddr[0]
            addresses.append(f"{ip}:{port}")
    return list(dict.fromkeys(addresses))


async def _wait_ready(channel: grpc.aio.Channel) -> None:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await channel.channel_ready()
    except TimeoutError as error:
        raise WorkerUnavailableError("nobody answers there") from error


def _unavailable_or_fatal(error: grpc.aio.AioRpcError) -> Exception:
    known = from_rpc_error(error)
    if error.code() in _TRY_AGAIN or known.reason in _LEASE_REASONS:
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
