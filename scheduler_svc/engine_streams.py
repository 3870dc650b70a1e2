"""The gateways' `EngineStream`s: which stream is each gateway's newest, and who may open one.

It knows generations and ids; what goes through a stream is `gateway_session`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pagewire.kit.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidRequestError,
    QueueFullError,
)
from pagewire.kit.heartbeat import HEARTBEAT_TIMEOUT_S
from pagewire.kit.pulse import ProcessFigures, no_figures
from pagewire.kit.spans import NO_SPANS, Spans
from pagewire.v1 import scheduler_pb2
from scheduler_svc.bounds import MAX_GATEWAYS
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.gateway_outbox import Write
from scheduler_svc.gateway_session import Frames, GatewaySession


@dataclass(frozen=True, slots=True)
class SchedulerIdentity:
    """Which scheduler process this is."""

    scheduler_id: str
    epoch: int
    """Random, new at each start of the process."""


class EngineStreams:
    """The newest stream of each gateway."""

    def __init__(
        self,
        core: EngineCore,
        identity: SchedulerIdentity,
        process: Callable[[], ProcessFigures | None] = no_figures,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._core = core
        self._spans = spans
        self._identity = identity
        self._process = process
        self._sessions: dict[str, GatewaySession] = {}

    async def serve(self, frames: Frames, write: Write) -> None:
        """Carry one stream from its first frame to its end; nothing of it is left afterwards.

        Raises:
            PagewireError: Why the stream ended, unless the gateway ended it.
        """
        opened = await _read_open(frames)
        info = self._core.require_info()
        session = self._open(opened)
        session.accept(self._identity.scheduler_id, self._identity.epoch, info.fingerprint)
        try:
            await session.run(frames, write)
        finally:
            session.abort_all()
            if self._sessions.get(opened.gateway_id) is session:
                del self._sessions[opened.gateway_id]

    def _open(self, opened: scheduler_pb2.EngineStreamOpen) -> GatewaySession:
        """Replace the gateway's earlier stream, whose requests end before this one adds any.

        Raises:
            FailedPreconditionError: The gateway has a newer stream, or another process its id.
            QueueFullError: Too many gateways.
        """
        earlier = self._sessions.get(opened.gateway_id)
        if earlier is not None:
            if earlier.is_newer_than(opened):
                raise FailedPreconditionError(
                    "this gateway has a newer stream", reason="STALE_GENERATION"
                )
            if earlier.is_in_use_by_another(opened):
                raise FailedPreconditionError(
                    f"another gateway that runs has the id {opened.gateway_id!r}: give each one its"
                    " own --gateway-id, or none",
                    reason="GATEWAY_ID_TAKEN",
                    field="gateway_id",
                )
            earlier.abort_all()
            earlier.end(FailedPreconditionError("a newer stream took over", reason="SUPERSEDED"))
        elif len(self._sessions) >= MAX_GATEWAYS:
            raise QueueFullError(
                f"{MAX_GATEWAYS} gateways are connected", reason="TOO_MANY_GATEWAYS"
            )
        session = self._sessions[opened.gateway_id] = GatewaySession(
            self._core, opened, self._process, self._spans
        )
        return session


async def _read_open(frames: Frames) -> scheduler_pb2.EngineStreamOpen:
    try:
        async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
            first = await anext(frames, None)
    except TimeoutError as error:
        raise DeadlineExceededError("the first frame did not come") from error
    if first is None or not first.HasField("open") or not first.open.gateway_id:
        raise InvalidRequestError(
            "the first frame must have `open` with a gateway_id", reason="NOT_OPENED", field="open"
        )
    return first.open
