"""`pagewire profile`: has the workers of a stack profile some steps, and shows the costliest parts.

It asks every worker on its administration port, waits for all of them, and adds up what they say.
The traces stay where the workers wrote them. It knows nothing of PyTorch.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from pagewire.cli.operator_table import operator_table, worker_lines
from pagewire.kit.channels import check_target, open_channel
from pagewire.kit.config import load_config
from pagewire.kit.errors import PagewireError, ServiceUnavailableError, from_rpc_error
from pagewire.kit.plain_text import one_line
from pagewire.kit.sockets import listening_sockets
from pagewire.kit.tasks import cancel_and_wait
from pagewire.kit.tls import TlsIdentity
from pagewire.v1 import worker_pb2, worker_pb2_grpc

_DEFAULT_STEPS = 100
_SOCKETS = "worker*-admin.sock"
_START_TIMEOUT_S = 60.0
# Beyond its limits a worker needs time to write what it recorded.
_WRITE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ProfileConfig:
    """Profile some steps of the workers of a stack that runs with --profiler-dir."""

    steps: int | None = None
    """Steps of each worker, at most 1000. Default: 100, or no other limit beside --seconds."""
    seconds: int | None = None
    """Seconds, at most 300, which is the default."""
    name: str = "profile"
    """First part of the names of the traces."""
    targets: tuple[str, ...] = ()
    """Administration addresses of the workers: host:port or unix:/path. Default: those of the stack
    that runs here on unix sockets, as `pagewire serve` starts it."""
    tls: TlsIdentity = field(default_factory=TlsIdentity)

    def __post_init__(self) -> None:
        for name in ("steps", "seconds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(name, value, "must be at least 1")
        for target in self.targets:
            check_target(target, "targets")

    def start_request(self) -> worker_pb2.StartProfileRequest:
        """Return what every worker is asked for."""
        steps = _DEFAULT_STEPS if self.steps is None and self.seconds is None else self.steps
        return worker_pb2.StartProfileRequest(
            name=self.name, max_steps=steps or 0, max_seconds=self.seconds or 0
        )


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    config = load_config(ProfileConfig, prog="pagewire profile", argv=arguments)
    return asyncio.run(profile(config))


async def profile(config: ProfileConfig) -> int:
    """Profile, print what came out and return the exit code.

    Raises:
        PagewireError: No worker was found, or one refused.
    """
    targets = list(config.targets) or find_workers()
    tls = config.tls.peer("worker")
    workers = [_Worker(target, open_channel(target, tls=tls)) for target in targets]
    try:
        limits = await _start_all(workers, config.start_request())
        print(
            f"profiling {len(workers)} worker{'s' if len(workers) > 1 else ''}: at most "
            f"{limits.max_steps} steps and {limits.max_seconds} s; Ctrl-C ends it now",
            flush=True,
        )
        results = await _results(workers, limits.max_seconds + _WRITE_TIMEOUT_S)
    finally:
        await asyncio.gather(*(worker.channel.close() for worker in workers))
    for line in (*worker_lines(targets, results), "", *operator_table(results)):
        print(one_line(line))
    return 0


def find_workers() -> list[str]:
    """Return the administration addresses of the workers of the stack that runs on this machine.

    Raises:
        ServiceUnavailableError: None runs, or more than one.
    """
    stacks = listening_sockets(_SOCKETS)
    if not stacks:
        raise ServiceUnavailableError(
            "no stack with unix sockets runs here: start one with `pagewire serve --profiler-dir "
            "FOLDER`, or name the administration addresses of workers with --targets"
        )
    addresses = [[f"unix:{path}" for path in paths] for paths in stacks.values()]
    if len(addresses) > 1:
        choices = " or ".join(f"--targets {','.join(group)}" for group in addresses)
        raise ServiceUnavailableError(f"{len(addresses)} stacks run here, choose one: {choices}")
    return addresses[0]


class _Worker:
    """One worker's administration port."""

    def __init__(self, target: str, channel: grpc.aio.Channel) -> None:
        self.target = target
        self.channel = channel
        self._stub: worker_pb2_grpc.WorkerAdminServiceAsyncStub = (
            worker_pb2_grpc.WorkerAdminServiceStub(channel)
        )

    async def start(
        self, request: worker_pb2.StartProfileRequest
    ) -> worker_pb2.StartProfileResponse:
        try:
            return await self._stub.StartProfile(request, timeout=_START_TIMEOUT_S)
        except grpc.aio.AioRpcError as exc:
            raise self._error(exc) from exc

    async def stop(self, *, wait: bool, timeout_s: float) -> worker_pb2.StopProfileResponse:
        request = worker_pb2.StopProfileRequest(wait=wait)
        try:
            return await self._stub.StopProfile(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            raise self._error(exc) from exc

    def _error(self, exc: grpc.aio.AioRpcError) -> PagewireError:
        error = from_rpc_error(exc)
        return type(error)(f"{self.target}: {error.message}", reason=error.reason)


async def _start_all(
    workers: Sequence[_Worker], request: worker_pb2.StartProfileRequest
) -> worker_pb2.StartProfileResponse:
    """Start all at once; if one refuses, those that have started end again."""
    started: list[_Worker] = []

    async def start(worker: _Worker) -> worker_pb2.StartProfileResponse:
        answer = await worker.start(request)
        started.append(worker)
        return answer

    starts = [asyncio.create_task(start(worker)) for worker in workers]
    await asyncio.wait(starts)
    if len(started) < len(workers):
        ends = (worker.stop(wait=False, timeout_s=_WRITE_TIMEOUT_S) for worker in started)
        await asyncio.gather(*ends, return_exceptions=True)
    # Raises what the first one says, and has taken note of the others.
    answers = await asyncio.gather(*starts)
    return answers[0]


async def _results(
    workers: Sequence[_Worker], timeout_s: float
) -> list[worker_pb2.StopProfileResponse]:
    """Wait for the profiles to end, or end them when a signal comes."""
    with _first_signal() as signalled:
        waiting = asyncio.create_task(_stop_all(workers, wait=True, timeout_s=timeout_s))
        interrupted = asyncio.create_task(signalled.wait())
        try:
            await asyncio.wait({waiting, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return await waiting
            return await _stop_all(workers, wait=False, timeout_s=_WRITE_TIMEOUT_S)
        finally:
            await cancel_and_wait(waiting, interrupted)


async def _stop_all(
    workers: Sequence[_Worker], *, wait: bool, timeout_s: float
) -> list[worker_pb2.StopProfileResponse]:
    return await asyncio.gather(
        *(worker.stop(wait=wait, timeout_s=timeout_s) for worker in workers)
    )


@contextmanager
def _first_signal() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second one ends the command."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        event.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield event
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
