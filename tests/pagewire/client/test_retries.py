"""Both clients against gateways that refuse, die and fall silent."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, product
from typing import Any

import pytest

from pagewire import AsyncClient, Client
from pagewire.client import transport
from pagewire.client.aio_retrying import AsyncPauses
from pagewire.client.retrying import Pauses
from pagewire.errors import (
    PagewireError,
    QueueFullError,
    RequestCancelledError,
    ServiceUnavailableError,
)
from pagewire.v1 import inference_pb2
from tests.fakes.scripted_inference import ScriptedInference, running_inference
from tests.fakes.silent_inference import silent_gateway
from tests.pagewire.client.conftest import events

CHAT = inference_pb2.ChatResponse
ANSWERS: dict[str, Callable[[], Iterator[Any]]] = {
    "Generate": lambda: events("a"),
    "Chat": lambda: events("a", kind=CHAT),
    "CountTokens": lambda: iter([inference_pb2.CountTokensResponse(num_tokens=1)]),
}
METHODS = ("generate", "chat", "count_tokens")
NUM_CALLS = 64


@pytest.fixture
def set_policy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change fields of the retry policy that clients find."""
    shipped = transport.service_config()

    def set_fields(**fields: Any) -> None:
        config = json.loads(shipped)
        config["methodConfig"][0]["retryPolicy"].update(fields)
        monkeypatch.setattr(transport, "service_config", lambda: json.dumps(config))

    return set_fields


@pytest.fixture
def long_pauses(set_policy: Callable[..., None]) -> None:
    set_policy(initialBackoff="1000s", maxBackoff="1000s")


@pytest.fixture
def pausing(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set as soon as a call of either client pauses."""
    begun = threading.Event()

    def watch(kind: Any) -> None:
        wait = kind.wait

        def noted_wait(*args: Any) -> Any:
            begun.set()
            return wait(*args)

        monkeypatch.setattr(kind, "wait", noted_wait)

    watch(Pauses)
    watch(AsyncPauses)
    return begun


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody listens on, and nobody else may take."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def serve(gateway: ScriptedInference) -> None:
    gateway.scripts = {
        method: lambda request, call, answer=answer: answer() for method, answer in ANSWERS.items()
    }


def refuse(error: PagewireError, times: float = float("inf")) -> Callable[..., Iterator[Any]]:
    """A script that fails at first."""
    attempts = count()

    def play(request: Any, call: Any) -> Iterator[Any]:
        if next(attempts) < times:
            raise error
        yield from ANSWERS["Generate"]()

    return play


def ask_many(client: Client, pool: ThreadPoolExecutor) -> list[Any]:
    return [pool.submit(getattr(client, METHODS[i % len(METHODS)]), "Hi") for i in range(NUM_CALLS)]


def ask_many_async(client: AsyncClient) -> list[asyncio.Task[Any]]:
    return [
        asyncio.create_task(getattr(client, METHODS[i % len(METHODS)])("Hi"))
        for i in range(NUM_CALLS)
    ]


@pytest.mark.parametrize("retry", [True, False])
def test_many_calls_of_threads_outlive_a_killed_gateway(free_port, retry, set_policy):
    set_policy(initialBackoff="0.1s")
    second = f"127.0.0.1:{free_port}"
    with (
        silent_gateway() as first,
        Client([first.target, second], retry=retry) as client,
        ThreadPoolExecutor(NUM_CALLS) as pool,
    ):
        calls = ask_many(client, pool)
        first.wait_calls(NUM_CALLS)
        with running_inference(second) as gateway:
            serve(gateway)
            first.process.kill()
            failures = [call.exception() for call in calls]
    check(failures, gateway, retry)


@pytest.mark.parametrize("retry", [True, False])
async def test_many_calls_of_a_loop_outlive_a_killed_gateway(free_port, retry, set_policy):
    set_policy(initialBackoff="0.1s")
    second = f"127.0.0.1:{free_port}"
    with silent_gateway() as first:
        async with AsyncClient([first.target, second], retry=retry) as client:
            tasks = ask_many_async(client)
            await asyncio.to_thread(first.wait_calls, NUM_CALLS)
            with running_inference(second) as gateway:
                serve(gateway)
                first.process.kill()
                results = await asyncio.gather(*tasks, return_exceptions=True)
    check([each if isinstance(each, Exception) else None for each in results], gateway, retry)


def check(failures: list[Any], gateway: ScriptedInference, retry: bool) -> None:
    if retry:
        assert failures == [None] * NUM_CALLS and len(gateway.calls) == NUM_CALLS
    else:
        assert all(isinstance(each, ServiceUnavailableError) for each in failures)
        assert gateway.calls == []


def test_where_no_gateway_is_left_all_calls_of_threads_fail(set_policy):
    set_policy(initialBackoff="0.01s", maxBackoff="0.05s")
    with (
        silent_gateway() as gateway,
        Client(gateway.target) as client,
        ThreadPoolExecutor(NUM_CALLS) as pool,
    ):
        calls = ask_many(client, pool)
        gateway.wait_calls(NUM_CALLS)
        gateway.process.kill()
        assert all(isinstance(call.exception(), ServiceUnavailableError) for call in calls)


async def test_where_no_gateway_is_left_all_calls_of_a_loop_fail(set_policy):
    set_policy(initialBackoff="0.01s", maxBackoff="0.05s")
    with silent_gateway() as gateway:
        async with AsyncClient(gateway.target) as client:
            tasks = ask_many_async(client)
            await asyncio.to_thread(gateway.wait_calls, NUM_CALLS)
            gateway.process.kill()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, ServiceUnavailableError) for each in results)


@pytest.mark.parametrize("method", ["generate", "count_tokens"])
def test_a_gateway_that_falls_silent_is_left_for_another(connect, free_port, method, monkeypatch):
    monkeypatch.setattr(transport, "_KEEPALIVE_TIME_MS", 200)
    monkeypatch.setattr(transport, "_KEEPALIVE_TIMEOUT_MS", 200)
    second = f"127.0.0.1:{free_port}"
    with silent_gateway() as first, ThreadPoolExecutor(1) as pool:
        call = pool.submit(connect([first.target, second]).call, method, "Hi")
        first.wait_calls(1)
        with running_inference(second) as gateway:
            serve(gateway)
            first.process.send_signal(signal.SIGSTOP)
            call.result()
            assert len(gateway.calls) == 1


def test_attempts_are_bounded(gateway, connect, set_policy):
    set_policy(maxAttempts=3, initialBackoff="0.01s")
    gateway.scripts["Generate"] = refuse(ServiceUnavailableError("draining"))
    with pytest.raises(ServiceUnavailableError, match="draining"):
        connect(gateway.target).call("generate", "Hi")
    assert len(gateway.calls) == 3


def test_the_attempts_share_one_deadline(gateway, connect):
    later = ServiceUnavailableError("draining", retry_after_s=0.5)
    gateway.scripts["Generate"] = refuse(later, times=1)
    # On the wire it is rounded up: from 10 s on to whole seconds, from 1 s on to hundredths.
    connect(gateway.target).call("generate", "Hi", timeout=9)
    first, second = (call.time_remaining for call in gateway.calls)
    assert first <= 9.02 and second < 8.7


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize("method", ["generate", "list_models"])
def test_no_pause_outlasts_the_deadline(gateway, connect, method):
    gateway.scripts["Generate"] = refuse(ServiceUnavailableError("draining"))
    gateway.scripts["ListModels"] = gateway.scripts["Generate"]
    arguments = [] if method == "list_models" else ["Hi"]
    with pytest.raises(ServiceUnavailableError, match="draining"):
        connect(gateway.target).call(method, *arguments, timeout=100)
    assert len(gateway.calls) == 1


@pytest.mark.usefixtures("long_pauses")
def test_an_attempt_comes_when_the_gateway_asked_for_it(gateway, connect):
    came: list[float] = []
    answer = refuse(ServiceUnavailableError("starting", retry_after_s=0.3), times=1)

    def play(request, call):
        came.append(time.monotonic())
        yield from answer(request, call)

    gateway.scripts["Generate"] = play
    connect(gateway.target).call("generate", "Hi")
    assert len(came) == 2 and came[1] - came[0] >= 0.3


def test_a_full_queue_is_asked_again_where_the_policy_says_so(gateway, connect, set_policy):
    set_policy(retryableStatusCodes=["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
    gateway.scripts["Generate"] = refuse(QueueFullError("full", retry_after_s=0.01), times=2)
    assert connect(gateway.target).call("generate", "Hi").text == "a"
    gateway.scripts["Generate"] = refuse(QueueFullError("full"))
    with pytest.raises(QueueFullError):
        connect(gateway.target).call("generate", "Hi")
    assert len(gateway.calls) == 4


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize("by", ["cancel", "close"])
def test_a_thread_is_cancelled_in_a_pause(gateway, pausing, by):
    gateway.scripts["Generate"] = refuse(ServiceUnavailableError("draining"))
    with Client(gateway.target) as client, ThreadPoolExecutor(1) as pool:
        stream = client.generate_stream("Hi")
        reading = pool.submit(stream.collect)
        assert pausing.wait(60)
        (stream.cancel if by == "cancel" else client.close)()
        with pytest.raises(RequestCancelledError):
            reading.result()
    assert len(gateway.calls) == 1


@pytest.mark.usefixtures("long_pauses")
def test_a_single_answer_is_cancelled_in_a_pause_by_the_end_of_its_client(gateway, pausing):
    gateway.scripts["ListModels"] = refuse(ServiceUnavailableError("draining"))
    with Client(gateway.target) as client, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.list_models)
        assert pausing.wait(60)
        client.close()
        with pytest.raises(RequestCancelledError):
            asking.result()


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize(
    ("by", "method"),
    [
        ("cancel", "generate_stream"),
        *product(("close", "task"), ("generate_stream", "list_models")),
    ],
)
async def test_a_task_is_cancelled_in_a_pause(gateway, pausing, by, method):
    gateway.scripts["Generate"] = refuse(ServiceUnavailableError("draining"))
    gateway.scripts["ListModels"] = gateway.scripts["Generate"]
    async with AsyncClient(gateway.target) as client:
        stream = client.generate_stream("Hi") if method == "generate_stream" else None
        task = asyncio.create_task(stream.collect() if stream else client.list_models())
        assert await asyncio.to_thread(pausing.wait, 60)
        if by == "close":
            await client.close()
        elif by == "task":
            task.cancel()
        else:
            assert stream is not None
            stream.cancel()
        with pytest.raises(asyncio.CancelledError if by == "task" else RequestCancelledError):
            await task
    assert len(gateway.calls) == 1
