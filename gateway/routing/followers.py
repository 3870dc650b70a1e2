"""Follows what one scheduler tells of itself: its load, and its KV events.

Both run beside the scheduler's EngineStream, end with it, and never by themselves: what goes wrong
is tried again with backoff, and until then the load is unknown and the index is not current. They
decide nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.replica_load import LoadReport, ReplicaLoad
from gateway.streams import Backoff, StreamLostError
from pagewire.kit.errors import from_rpc_error
from pagewire.kit.heartbeat import HEARTBEAT_TIMEOUT_S
from pagewire.kit.logs import get_logger
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc

LOAD_INTERVAL_S = 0.2

# The scheduler will not tell until it is started in another way, or is another version.
_NEVER = frozenset({"KV_EVENTS_OFF", "UNIMPLEMENTED"})
_LOST = "KV_EVENTS_LOST"

log = get_logger("gateway.routing")

Stub: TypeAlias = "scheduler_pb2_grpc.SchedulerServiceAsyncStub"


async def follow_load(stub: Stub, load: ReplicaLoad, num_own: Callable[[], int]) -> None:
    """Keep the load up to date until cancelled.

    Args:
        stub: Of the scheduler.
        load: Is told of reports, and when there are none.
        num_own: Gives this gateway's requests there.
    """

    async def serve(backoff: Backoff) -> None:
        interval_ms = int(LOAD_INTERVAL_S * 1000)
        call = stub.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=interval_ms))
        try:
            while True:
                load.take(_report(await _read(call)), num_own())
                backoff.reset()
        finally:
            load.lost()
            call.cancel()

    await _again_and_again(serve, "load")


async def follow_kv_events(stub: Stub, index: PrefixIndex) -> None:
    """Keep the index current until cancelled.

    It goes on where it was left, if it was, else it begins with a snapshot.
    """

    async def serve(backoff: Backoff) -> None:
        call = stub.SubscribeKvEvents(
            scheduler_pb2.SubscribeKvEventsRequest(
                start_sequence=index.next_sequence,
                snapshot=not index.next_sequence,
                hashes_only=True,
            )
        )
        try:
            # Not wait_for: in Python 3.11 it may swallow a cancellation.
            async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
                await call.initial_metadata()
            index.resume()
            while True:
                _apply(index, await _read(call))
                backoff.reset()
        except grpc.aio.AioRpcError as exc:
            if from_rpc_error(exc).reason == _LOST:
                index.void()
            raise
        finally:
            if not index.next_sequence:
                index.void()  # a part of a snapshot is worth nothing
            index.pause()
            call.cancel()

    await _again_and_again(serve, "kv_events")


async def _again_and_again(serve: Callable[[Backoff], Awaitable[None]], what: str) -> None:
    backoff = Backoff()
    while True:
        try:
            await serve(backoff)
        except grpc.aio.AioRpcError as exc:
            reason = from_rpc_error(exc).reason
            log.info("follower_lost", what=what, reason=reason, details=exc.details())
            if reason in _NEVER:
                await asyncio.Event().wait()
        except (StreamLostError, TimeoutError) as exc:
            log.info("follower_lost", what=what, reason=str(exc) or "silence")
        except Exception as exc:
            # Routing goes on without; requests must not suffer.
            log.error("follower_failed", what=what, exc_info=exc)
        await backoff.wait()


async def _read(call: Any) -> Any:
    """Return the next message; there is one every few seconds.

    Raises:
        TimeoutError: There was none.
        StreamLostError: There will be none.
    """
    async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
        message = await call.read()
    if message is grpc.aio.EOF:
        raise StreamLostError("the scheduler ended it")
    return message


def _report(message: scheduler_pb2.WatchLoadResponse) -> LoadReport:
    return LoadReport(
        message.num_requests_running + message.num_requests_waiting,
        message.num_tokens_waiting,
        message.ready and not message.figures.paused,
        message,
    )


def _apply(index: PrefixIndex, message: scheduler_pb2.SubscribeKvEventsResponse) -> None:
    if message.HasField("snapshot"):
        part = message.snapshot
        index.take_snapshot(part.hashes, part.through_sequence, part.is_last)
    elif message.sequence:
        index.apply(
            message.sequence,
            message.all_cleared,
            message.removed_hashes,
            [each for stored in message.stored for each in stored.hashes],
        )
