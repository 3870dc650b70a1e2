"""When a stack is ready, and the line that says so.

The line is for people and for programs that start a stack: `parse_ready_line` reads what
`ready_line` writes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagewire.cli.addresses import Addresses
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import from_rpc_error
from pagewire.kit.health import SERVING
from pagewire.kit.healthcheck import check
from pagewire.kit.plain_text import one_line

GATEWAY_SERVICE = "pagewire.v1.InferenceService"
SCHEDULER_SERVICE = "pagewire.v1.SchedulerService"

_READY = re.compile(
    r"pagewire is ready: (?P<url>\S+)/v1 \(OpenAI API\) and (?P<target>\S+) \(gRPC\)"
)
_RETRY_PAUSE_S = 0.1
# A server that is away, or one that has as many watchers as it takes, may answer later.
_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_CHECK_TIMEOUT_S = 10.0


def ready_line(
    addresses: Addresses,
    model: str,
    *,
    wants_key: bool = False,
    num_replicas: int = 1,
    num_up: int | None = None,
) -> str:
    """Return the one line that `pagewire serve` writes to standard output.

    Args:
        addresses: Of the stack.
        model: A name that it is served under.
        wants_key: Whether clients must send one.
        num_replicas: Of the engine.
        num_up: Those that serve already; None: all.
    """
    question = {"role": "user", "content": "What is the capital of France?"}
    # Greedy, so that the first answer is the same for everybody.
    body = json.dumps({"model": model, "temperature": 0, "messages": [question]})
    # In single quotes of a shell only the single quote itself is special.
    quoted = body.replace("'", "'\\''")
    key = "-H 'authorization: Bearer KEY' " if wants_key else ""
    is_partly = num_up is not None and num_up < num_replicas
    count = f"{num_up} of {num_replicas}" if is_partly else str(num_replicas)
    replicas = f", {count} replicas" if num_replicas > 1 else ""
    return (
        f"pagewire is ready: {addresses.http_url}/v1 (OpenAI API) and {addresses.grpc_target} "
        f"(gRPC){replicas}. Try: curl {addresses.http_url}/v1/chat/completions "
        f"{key}-H 'content-type: application/json' -d '{quoted}'"
    )


def parse_ready_line(line: str) -> tuple[str, str] | None:
    """Return (URL of the HTTP API, gRPC target), or None if it is another line."""
    match = _READY.match(line)
    return (match["url"], match["target"]) if match is not None else None


async def count_serving(targets: Iterable[str], service: str) -> int:
    """Return how many of the servers say that they serve now; one that is silent does not."""
    answers = await asyncio.gather(
        *(check(target, service, _CHECK_TIMEOUT_S) for target in targets)
    )
    return sum(answer.serving for answer in answers)


async def tell_why_not_ready(
    target: str, service: str, say: Callable[[str], None], interval_s: float = 30.0
) -> None:
    """Say what a start that takes long waits for, each reason once; until cancelled.

    Args:
        target: Of the server.
        service: Which is to serve.
        say: Takes a line.
        interval_s: From one question to the next.
    """
    told = ""
    while True:
        await asyncio.sleep(interval_s)
        status = await check(target, service, _CHECK_TIMEOUT_S)
        if status.status == "NOT_SERVING" and status.reason not in ("", told):
            told = status.reason
            say(f"pagewire: not ready yet: {one_line(told)}")


async def watch_serving(
    targets: Sequence[str], service: str, on_serving: Callable[[int], None]
) -> None:
    """Wait until all servers have served, and call with the place of each one as it does.

    Raises:
        ExceptionGroup: Something answers that is no health service.
    """

    async def wait(place: int, target: str) -> None:
        await wait_serving(target, service)
        on_serving(place)

    async with asyncio.TaskGroup() as group:
        for place, target in enumerate(targets):
            group.create_task(wait(place, target))


async def wait_serving(target: str, service: str) -> None:
    """Wait, however long it takes, until the service is SERVING; callers bound it.

    Raises:
        PagewireError: Something answers that is no health service.
    """
    request = health_pb2.HealthCheckRequest(service=service)
    options = (("grpc.min_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 200))
    async with open_channel(target, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        while True:
            try:
                async for response in stub.Watch(request, wait_for_ready=True):
                    if response.status == SERVING:
                        return
            except grpc.aio.AioRpcError as exc:
                if exc.code() not in _PASSING:
                    raise from_rpc_error(exc) from exc
            # The server went away in the middle; its next start may take a while.
            await asyncio.sleep(_RETRY_PAUSE_S)
