"""The client of grpc.health.v1: what `pagewire healthcheck` and the supervisor ask with.

Also the wait of a peer that came too early: services start at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagewire.kit.channels import open_channel
from pagewire.kit.health import REASON_KEY, SERVING
from pagewire.kit.tls import PeerTls


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """What a health service answered, or why it did not."""

    serving: bool
    status: str
    """SERVING, NOT_SERVING, SERVICE_UNKNOWN (no such name), UNREACHABLE or TIMEOUT."""
    reason: str = ""
    """Why it is not serving, when the service says so."""


async def check(
    target: str, service: str = "", timeout_s: float = 5.0, tls: PeerTls | None = None
) -> HealthStatus:
    """Ask once; never raises for what the other side does.

    Args:
        target: Address of any server of a service.
        service: "" for liveness, the service's full name for readiness.
        timeout_s: Seconds for connecting and answering together.
        tls: How the connection is secured; None: plain text.

    Raises:
        ValueError: The target has no valid form.
    """
    request = health_pb2.HealthCheckRequest(service=service)
    async with open_channel(target, tls=tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Check(request, timeout=timeout_s)
        try:
            response = await call
        except grpc.aio.AioRpcError as exc:
            return _from_error(exc)
        trailers = dict(await call.trailing_metadata() or ())
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    return HealthStatus(response.status == SERVING, name, str(trailers.get(REASON_KEY, "")))


async def wait_for_start(channel: grpc.aio.Channel, service: str, timeout_s: float) -> None:
    """Wait until a service begins to serve, at most for a time; never raises.

    For whoever was refused and is going to ask again: it need not guess when. A service that serves
    all the time had another reason to refuse, so the whole time passes; likewise where nobody
    tells.

    Args:
        channel: To the service; a peer that is not there yet is waited for, too.
        service: The service's full name.
        timeout_s: Seconds.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            if not await _begins_to_serve(channel, service):
                await _wait_forever()


async def _begins_to_serve(channel: grpc.aio.Channel, service: str) -> bool:
    """Wait until it does, after it did not; False: it does not tell any more."""
    stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
    call = stub.Watch(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True)
    was_down = False
    try:
        async for response in call:
            if response.status != SERVING:
                was_down = True
            elif was_down:
                return True
    except grpc.aio.AioRpcError:
        pass
    finally:
        call.cancel()
    return False


async def _wait_forever() -> NoReturn:
    while True:
        await asyncio.Event().wait()


def _from_error(exc: grpc.aio.AioRpcError) -> HealthStatus:
    if exc.code() is grpc.StatusCode.NOT_FOUND:
        return HealthStatus(False, "SERVICE_UNKNOWN", "the server has no service of this name")
    if exc.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return HealthStatus(False, "TIMEOUT", "no answer in time")
    return HealthStatus(False, "UNREACHABLE", exc.details() or exc.code().name)
