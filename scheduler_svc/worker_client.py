"""The gRPC executor: claims a worker by lease, loads it, and keeps one Execute stream with it.

`GrpcExecutor` chooses among addresses; `_ExecuteStream` is one claim's stream with its reader,
heartbeats and watchdog. Neither knows requests or scheduling. Everything runs on one event loop;
`close` awaits every task.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from pagewire import wire
from pagewire.engine_config import EngineConfig
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import (
    from_rpc_error,
)
from pagewire.kit.heartbeat import HEARTBEAT_TIMEOUT_S, Watchdog, send_heartbeats
from pagewire.kit.logs import get_logger
from pagewire.kit.tasks import cancel_and_wait
from pagewire.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from scheduler_svc.executor import (
    Executor,
    KvCachePlan,
    StepFailedError,
    WorkerFacts,
    WorkerLostError,
    WorkerUnavailableError,
)
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.worker_messages import StepEncoder, decode_facts, decode_output

CONNECT_TIMEOUT_S = 2.0
INITIALIZE_SILENCE_S = 300.0
"""Longest silence between progress messages while the model loads."""
ALLOCATE_TIMEOUT_S = 300.0
EXECUTE_TIMEOUT_S = 600.0
"""Longest step: a worker whose event loop lives but whose device hangs is lost too."""
CLOSE_TIMEOUT_S = 2.0

# The worker is not there, not yet, or not any more.
_TRY_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
# It serves somebody else.
_LEASE_REASONS = ("LEASE_HELD", "LEASE_LOST")

log = get_logger("scheduler_svc.worker_client")


class _StreamBrokenError(Exception):
    """A frame could not be written."""


@dataclass(slots=True)
class _Claim:
    """A worker that granted its lease."""

    address: str
    channel: grpc.aio.Channel
    stub: worker_pb2_grpc.WorkerServiceAsyncStub
    lease: worker_pb2.Lease
    stream: _ExecuteStream | None = None


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
            claim.stream = await _ExecuteStream.open(claim.stub, claim.lease, self._on_lost)
        except grpc.aio.AioRpcError as error:
            raise _unavailable_or_fatal(error) from error

    async def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        if self._claim is None or self._claim.stream is None:
            raise WorkerLostError("no worker")
        return await self._claim.stream.execute(output)

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

    def _on_lost(self) -> None:
        self.on_lost()


class _ExecuteStream:
    """One Execute stream: steps up, answers down, heartbeats both ways.

    Three tasks belong to it: reader, heartbeats, watchdog. Whatever ends first makes the stream
    lost; `close` cancels and awaits them.
    """

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[worker_pb2.ExecuteRequest, worker_pb2.ExecuteResponse],
        lease: worker_pb2.Lease,
        on_lost: Callable[[], None],
    ) -> None:
        self.lost_reason: str | None = None
        self._call = call
        self._lease = lease
        self._on_lost = on_lost
        self._encoder = StepEncoder()
        self._watchdog = Watchdog(HEARTBEAT_TIMEOUT_S)
        self._frame = 0
        self._num_heartbeats = 0
        # gRPC takes one write at a time; steps and heartbeats share the stream.
        self._write_lock = asyncio.Lock()
        self._answer: asyncio.Future[worker_pb2.ExecuteResponse] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        stub: worker_pb2_grpc.WorkerServiceAsyncStub,
        lease: worker_pb2.Lease,
        on_lost: Callable[[], None],
    ) -> _ExecuteStream:
        """Open the stream and wait until the worker accepted it.

        Raises:
            WorkerUnavailableError: It did not.
        """
        call = stub.Execute()
        stream = cls(call, lease, on_lost)
        try:
            async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
                await stream._write(worker_pb2.ExecuteRequest(open=worker_pb2.ExecuteOpen()))
                first = await call.read()
            if not (isinstance(first, worker_pb2.ExecuteResponse) and first.HasField("accepted")):
                raise WorkerUnavailableError("it did not accept the Execute stream")
        except TimeoutError as error:
            call.cancel()
            raise WorkerUnavailableError("silent after Execute was opened") from error
        except _StreamBrokenError as error:
            call.cancel()
            raise WorkerUnavailableError("it refused the Execute stream") from error
        except BaseException:
            call.cancel()
            raise
        stream._start()
        return stream

    async def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Send one step and wait for its answer; one at a time."""
        if self.lost_reason is not None:
            raise WorkerLostError(self.lost_reason)
        step = self._encoder.encode(output)
        answer = self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(EXECUTE_TIMEOUT_S):
                await self._write(worker_pb2.ExecuteRequest(step=step))
                frame = await answer
        except TimeoutError as error:
            self._lose(f"a step took more than {EXECUTE_TIMEOUT_S:.0f} s")
            raise WorkerLostError(self.lost_reason) from error
        except _StreamBrokenError as error:
            self._lose("the stream broke while a step was written")
            raise WorkerLostError(self.lost_reason) from error
        finally:
            self._answer = None
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, also where the write failed first
        return self._decode(frame, step, output.step)

    async def close(self) -> None:
        """Say goodbye if anybody listens, and end the tasks."""
        if self.lost_reason is None:
            with contextlib.suppress(TimeoutError, _StreamBrokenError, grpc.aio.AioRpcError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._write(worker_pb2.ExecuteRequest(close=worker_pb2.ExecuteClose()))
                    await self._call.done_writing()
                    await asyncio.wait(self._tasks[:1])
        await cancel_and_wait(*self._tasks)
        self._call.cancel()

    def _start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._read_answers(), name="execute-reader"),
            asyncio.create_task(self._send_heartbeats(), name="execute-heartbeats"),
            asyncio.create_task(self._watch(), name="execute-watchdog"),
        ]

    def _decode(
        self,
        answer: worker_pb2.ExecuteResponse,
        step: worker_pb2.SchedulerOutput,
        engine_step: int,
    ) -> ModelRunnerOutput:
        if answer.HasField("failed"):
            raise StepFailedError(f"{answer.failed.reason}: {answer.failed.message}")
        try:
            return decode_output(answer.output, step, engine_step)
        except (ValueError, KeyError) as error:
            self._lose(f"its answer is malformed: {error}")
            raise WorkerLostError(self.lost_reason) from error

    async def _write(self, frame: worker_pb2.ExecuteRequest) -> None:
        async with self._write_lock:
            self._frame += 1
            frame.frame = self._frame
            frame.lease.CopyFrom(self._lease)
            try:
                await self._call.write(frame)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                raise _StreamBrokenError from error
            except asyncio.CancelledError as error:
                # gRPC says so too when the call, not this task, was cancelled.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise _StreamBrokenError from error

    async def _read_answers(self) -> None:
        reason = "it ended the Execute stream"
        try:
            while isinstance(frame := await self._call.read(), worker_pb2.ExecuteResponse):
                self._watchdog.beat()
                answer = self._answer
                if not (frame.HasField("heartbeat") or answer is None or answer.done()):
                    answer.set_result(frame)
            reason = f"{reason} ({(await self._call.code()).name})"
        except grpc.aio.AioRpcError as error:
            reason = f"the Execute stream broke ({error.code().name})"
        finally:
            # Also when the call was cancelled under the reader: nobody reads answers any more.
            self._lose(reason)

    async def _send_heartbeats(self) -> None:
        # The reader sees the broken stream too and says why.
        with contextlib.suppress(_StreamBrokenError):
            await send_heartbeats(self._send_heartbeat)

    async def _send_heartbeat(self) -> None:
        self._num_heartbeats += 1
        beat = common_pb2.Heartbeat(sequence=self._num_heartbeats)
        await self._write(worker_pb2.ExecuteRequest(heartbeat=beat))

    async def _watch(self) -> None:
        silence_s = await self._watchdog.wait_expired()
        self._lose(f"silent for {silence_s:.0f} s")
        self._call.cancel()

    def _lose(self, reason: str) -> None:
        if self.lost_reason is not None:
            return
        self.lost_reason = reason
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorkerLostError(reason))
        self._on_lost()


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
