"""grpc.health.v1: liveness under "", readiness under the service's name, Check and Watch.

Our own servicer, because the one of grpcio-health-checking forgets all watchers of a name when one
of them leaves, and keeps Watch streams open while the server stops. It decides nothing: the
service says when it is serving and why not.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagewire.kit.errors import QueueFullError

SERVICE_NAME = "grpc.health.v1.Health"
# grpc.health.v1 has no place for a reason, so it travels in the trailers of Check.
REASON_KEY = "x-pagewire-reason"

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

MAX_WATCHERS = 1024
"""Most Watch calls at a time: they need no key, last for good, and each takes memory."""

_MAX_REASON_CHARS = 200


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Serving status by name. Belongs to one event loop; may be registered on several servers.

    After `shut_down` every status is NOT_SERVING for good and Watch streams end.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, tuple[health_pb2.HealthCheckResponse.ServingStatus, str]] = {
            "": (SERVING, "")
        }
        self._changed = asyncio.Event()
        self._shut_down = False
        self._num_watchers = 0

    def set(self, service: str, serving: bool, reason: str = "") -> None:
        """Set one name's status; ignored after `shut_down`."""
        if not self._shut_down:
            self._statuses[service] = (SERVING if serving else NOT_SERVING, reason)
            self._notify()

    def shut_down(self, reason: str) -> None:
        """Set all names to NOT_SERVING for good; idempotent."""
        self._shut_down = True
        for service in self._statuses:
            self._statuses[service] = (NOT_SERVING, reason)
        self._notify()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service name")
        status, reason = self._statuses[request.service]
        if reason:
            context.set_trailing_metadata(((REASON_KEY, _header_text(reason)),))
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        if self._num_watchers >= MAX_WATCHERS:
            raise QueueFullError(
                f"{MAX_WATCHERS} calls of Watch are open, which is the limit; use Check",
                reason="TOO_MANY_WATCHERS",
            )
        self._num_watchers += 1
        try:
            await self._watch(request, context)
        finally:
            self._num_watchers -= 1

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        sent: health_pb2.HealthCheckResponse.ServingStatus | None = None
        while True:
            changed = self._changed
            status, _ = self._statuses.get(request.service, (SERVICE_UNKNOWN, ""))
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            elif self._shut_down:
                return
            else:
                await changed.wait()

    def _notify(self) -> None:
        """Wake all watchers; each finds a fresh event for the change after this one."""
        self._changed.set()
        self._changed = asyncio.Event()


def _header_text(text: str) -> str:
    """Return the text as a header may hold it: printable ASCII, and not much of it."""
    cut = text[:_MAX_REASON_CHARS]
    return "".join(char if " " <= char <= "~" else "?" for char in cut).strip()
