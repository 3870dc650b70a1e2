"""Start, readiness, drain and stop of a whole gateway."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable

import grpc
import pytest
import uvicorn

from gateway.config import GatewayConfig
from gateway.server import GatewayServer
from pagewire.kit.errors import (
    NOT_BEGUN_HEADER,
    FailedPreconditionError,
    InternalError,
    from_rpc_error,
)
from pagewire.kit.server import ServiceServer
from pagewire.v1 import inference_pb2
from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import Gateway, GatewayFactory

COMPLETIONS = "/v1/completions"
BODY = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0}


async def start_request(gateway: Gateway) -> asyncio.Task[object]:
    """A request that waits for its first token."""
    gateway.scheduler.go_on.clear()
    asking = asyncio.create_task(gateway.http.post(COMPLETIONS, json=BODY))
    await gateway.scheduler.until(lambda: gateway.scheduler.adds)
    return asking


async def test_a_drain_lets_running_requests_finish_and_refuses_new_ones(
    run_gateway: GatewayFactory,
) -> None:
    async with run_gateway(drain_timeout_s=20.0) as gateway:
        assert "connection" not in (await gateway.http.get("/version")).headers
        asking = await start_request(gateway)
        stopping = asyncio.create_task(gateway.server.stop())
        await gateway.until_ready(False)
        refused = await gateway.http.post(COMPLETIONS, json=BODY)
        assert (refused.status_code, refused.headers["x-error-reason"]) == (503, "DRAINING")
        assert refused.headers[NOT_BEGUN_HEADER] == "1"
        assert refused.headers["connection"] == "close"
        gateway.scheduler.go_on.set()
        answer = await asking
        assert answer.json()["choices"][0]["text"] == "cbac"  # type: ignore[attr-defined]
        assert answer.headers["connection"] == "close"  # type: ignore[attr-defined]
        await stopping


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_who_asks_again_upon_the_last_answer_of_a_drain_is_refused(
    run_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """And neither cancelled nor cut off: that would not say that another gateway may be asked."""
    request = inference_pb2.GenerateRequest(text="abc", stopping={"max_tokens": 4})

    async def ask() -> object:
        if protocol == "http":
            answer = await gateway.http.post(COMPLETIONS, json=BODY)
            return answer.headers.get("x-error-reason")
        try:
            async for _ in gateway.grpc.Generate(request):
                pass
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error).reason
        return None

    async def wait_quiet(self: ServiceServer, last_s: Callable[[], float] = lambda: 0.0) -> None:
        last_ends_s.append(last_s())
        is_waiting.set()
        await asked_again.wait()

    last_ends_s: list[float] = []
    begun_s, is_waiting, asked_again = time.monotonic(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(ServiceServer, "wait_quiet", wait_quiet)
    async with run_gateway(drain_timeout_s=20.0) as gateway:
        gateway.scheduler.go_on.clear()
        asking = asyncio.create_task(ask())
        await gateway.scheduler.until(lambda: gateway.scheduler.adds)
        stopping = asyncio.create_task(gateway.server.stop())
        await gateway.until_ready(False)
        gateway.scheduler.go_on.set()
        assert await asking is None
        await is_waiting.wait()
        assert await ask() == "DRAINING"
        asked_again.set()
        await stopping
        assert last_ends_s[0] > begun_s


async def test_a_drain_ends_what_does_not_finish_in_time(run_gateway: GatewayFactory) -> None:
    async with run_gateway(drain_timeout_s=0.2) as gateway:
        asking = await start_request(gateway)
        await gateway.server.stop()
        answer = await asking
        assert answer.status_code == 503  # type: ignore[attr-defined]
        assert answer.headers["x-error-reason"] == "SHUTTING_DOWN"  # type: ignore[attr-defined]
        assert NOT_BEGUN_HEADER not in answer.headers  # type: ignore[attr-defined]


async def test_a_stream_that_was_begun_before_a_drain_ends_its_connection(
    run_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_quiet(self: ServiceServer, last_s: object = None) -> None:
        await has_ended.wait()  # the servers' own end comes after this

    has_ended = asyncio.Event()
    monkeypatch.setattr(ServiceServer, "wait_quiet", wait_quiet)
    body = json.dumps(BODY | {"stream": True}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n"
    async with run_gateway(drain_timeout_s=20.0) as gateway:
        gateway.scheduler.go_on.clear()
        port = gateway.server.http_server.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        assert b"connection" not in (await reader.readuntil(b"\r\n\r\n")).lower()
        stopping = asyncio.create_task(gateway.server.stop())
        await gateway.until_ready(False)
        gateway.scheduler.go_on.set()
        async with asyncio.timeout(20):
            assert b"[DONE]" in await reader.read()
        has_ended.set()
        await stopping
        writer.close()


async def test_a_stopped_gateway_leaves_its_stream_cleanly(run_gateway: GatewayFactory) -> None:
    async with run_gateway() as gateway:
        assert gateway.scheduler.num_open == 1
        await gateway.server.stop()
        await gateway.scheduler.until(lambda: gateway.scheduler.num_open == 0)
        assert gateway.scheduler.num_closed_cleanly == 1


async def test_readiness_follows_the_scheduler(gateway: Gateway) -> None:
    await gateway.scheduler.__aexit__()
    await gateway.until_ready(False)
    assert "no scheduler" in gateway.server.readiness.reason()


@pytest.mark.parametrize("end", ["a bug", "cancelled"])
async def test_an_http_server_that_ends_by_itself_ends_the_gateway(
    run_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Else the process would live on, and answer nobody over HTTP."""
    ended = asyncio.Event()

    async def serve(server: uvicorn.Server, sockets: object) -> None:
        server.started = True
        await ended.wait()
        if end == "cancelled":
            raise asyncio.CancelledError
        raise RuntimeError(end)

    monkeypatch.setattr(uvicorn.Server, "serve", serve)
    async with run_gateway() as gateway:
        ended.set()
        with pytest.raises(InternalError, match="HTTP server ended by itself"):
            async with asyncio.timeout(20):
                await gateway.server.wait_failed()


async def test_a_port_in_use_is_one_clear_error(gateway: Gateway) -> None:
    port = gateway.server.http_server.port
    config = GatewayConfig(http_port=port, grpc_port=0, admin_listen=None, metrics_port=0)
    server = GatewayServer(config)
    with pytest.raises(FailedPreconditionError, match=f"{port}.*--http-port"):
        await server.start()
    await server.stop()


def test_the_gateway_imports_neither_torch_nor_a_tokenizer_nor_other_services() -> None:
    code = (
        "import sys, gateway.server;"
        "print([m for m in ('torch', 'transformers', 'tokenizers', 'numpy', 'tokenizer_svc',"
        " 'scheduler_svc', 'worker_svc') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert output.strip() == "[]"
