"""Clients that do not read: bounded memory, nothing for others to notice, an end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
import pytest

from gateway.config import RequestLimits, Timeouts
from gateway.server import SERVICE_NAME
from pagewire.cli.ready import wait_serving
from pagewire.kit.channels import open_channel
from pagewire.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.fakes.fake_tokenizer import FakeTokenizer
from tests.gateway.conftest import Gateway, GatewayFactory

COMPLETIONS = "/v1/completions"
QUICK = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0}
NUM_OUTPUTS = 64
NUM_TOKENS = 5000
LIMITS = RequestLimits(max_buffered_output_bytes=64 * 1024)


@dataclass(frozen=True)
class Address:
    """Where a gateway listens."""

    http_port: int
    grpc: str

    @classmethod
    def of(cls, gateway: Gateway) -> Address:
        return cls(gateway.server.http_server.port, gateway.server.grpc_server.address)


LONG = QUICK | {"max_tokens": NUM_TOKENS, "n": NUM_OUTPUTS, "temperature": 1, "stream": True}
CLIENT_GONE = 2


def long_scheduler() -> FakeScheduler:
    scheduler = FakeScheduler()
    scheduler.info.max_model_len = 2 * NUM_TOKENS
    return scheduler


@asynccontextmanager
async def http_client_that_does_not_read(address: Address) -> AsyncIterator[socket.socket]:
    """Send a long request from a socket with little room, and leave the answer where it is."""
    body = json.dumps(LONG).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", address.http_port))
        await asyncio.get_running_loop().sock_sendall(client, head.encode() + body)
        yield client


@asynccontextmanager
async def grpc_client_that_does_not_read(address: Address) -> AsyncIterator[Any]:
    """Start a long call on a connection of its own, and read no message of it."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1024),
    ]
    async with open_channel(address.grpc, options=options) as channel:
        request = inference_pb2.GenerateRequest(
            text="abc",
            stopping=inference_pb2.StoppingOptions(max_tokens=NUM_TOKENS),
            sampling=inference_pb2.SamplingOptions(n=NUM_OUTPUTS),
        )
        yield inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)


@asynccontextmanager
async def gateway_process(*flags: str) -> AsyncIterator[tuple[psutil.Process, Address]]:
    """Run a gateway of its own process until it is ready; end it afterwards."""
    http_port, grpc_port = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", f"--http-port={http_port}", f"--grpc-port={grpc_port}",
        "--admin-listen=none", "--metrics-port=0", "--drain-timeout=0", *flags,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await wait_serving(f"127.0.0.1:{grpc_port}", SERVICE_NAME)
        yield psutil.Process(process.pid), Address(http_port, f"127.0.0.1:{grpc_port}")
    finally:
        process.terminate()
        await process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


STUCK = [http_client_that_does_not_read, grpc_client_that_does_not_read]


@pytest.mark.parametrize("stuck_client", STUCK)
async def test_a_client_that_does_not_read_loses_its_request_and_no_other_does(
    run_gateway: GatewayFactory, stuck_client: Any
) -> None:
    scheduler = long_scheduler()
    async with run_gateway(scheduler=scheduler, limits=LIMITS) as gateway:
        async with stuck_client(Address.of(gateway)):
            await scheduler.until(lambda: scheduler.adds)
            stuck = {add.request_id for add in scheduler.adds}
            while len(scheduler.aborts) < NUM_OUTPUTS:
                answer = await gateway.http.post(COMPLETIONS, json=QUICK)
                assert answer.json()["choices"][0]["text"] == "cbac"
            assert {reason for _, reason in scheduler.aborts} == {CLIENT_GONE}
            assert {request_id for request_id, _ in scheduler.aborts} >= stuck
        await gateway.server.service.wait_idle()


@pytest.mark.parametrize("stuck_client", STUCK)
async def test_a_client_that_reads_nothing_any_more_is_ended_and_leaves_nothing(
    run_gateway: GatewayFactory, stuck_client: Any
) -> None:
    timeouts = Timeouts(send_timeout_s=0.5)
    async with run_gateway(long_scheduler(), limits=LIMITS, timeouts=timeouts) as gateway:
        async with stuck_client(Address.of(gateway)):
            await gateway.scheduler.until(lambda: len(gateway.scheduler.aborts) == NUM_OUTPUTS)
            await gateway.server.service.wait_idle()
        answer = await gateway.http.post(COMPLETIONS, json=QUICK)
        assert answer.json()["choices"][0]["text"] == "cbac"


@pytest.mark.parametrize("method", ["Generate", "GenerateBatch"])
async def test_a_client_that_reads_again_too_late_is_told_though_its_first_message_was_given_up(
    run_gateway: GatewayFactory, method: str
) -> None:
    timeouts = Timeouts(send_timeout_s=0.2)
    # So little room that not even the first event fits.
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 5),
    ]
    stopping = inference_pb2.StoppingOptions(max_tokens=NUM_TOKENS)
    requests: dict[str, Any] = {
        "Generate": inference_pb2.GenerateRequest(text="abc", stopping=stopping),
        "GenerateBatch": inference_pb2.GenerateBatchRequest(
            prompts=[inference_pb2.BatchPrompt(text="abc")], stopping=stopping
        ),
    }
    async with (
        run_gateway(long_scheduler(), timeouts=timeouts) as gateway,
        open_channel(Address.of(gateway).grpc, options=options) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = getattr(stub, method)(requests[method])
        await gateway.scheduler.until(lambda: gateway.scheduler.adds)
        await gateway.server.service.wait_idle()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async with asyncio.timeout(30):
                async for _ in call:
                    pass
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.slow
@pytest.mark.parametrize("stuck_client", STUCK)
async def test_the_memory_of_a_gateway_stays_bounded_behind_clients_that_do_not_read(
    stuck_client: Any,
) -> None:
    num_clients, buffer_bytes = 8, 1024 * 1024
    async with long_scheduler() as scheduler, FakeTokenizer() as tokenizer:
        flags = [
            f"--max-buffered-output-bytes={buffer_bytes}",
            f"--schedulers={scheduler.target}",
            f"--tokenizers={tokenizer.target}",
        ]
        async with gateway_process(*flags) as (process, address), AsyncExitStack() as clients:
            before_bytes = process.memory_info().rss
            for _ in range(num_clients):
                await clients.enter_async_context(stuck_client(address))
            async with asyncio.timeout(250):
                while len(scheduler.aborts) < num_clients * NUM_OUTPUTS:
                    with contextlib.suppress(TimeoutError):  # `until` waits 20 s at most
                        await scheduler.until(
                            lambda: len(scheduler.aborts) == num_clients * NUM_OUTPUTS
                        )
            grown_bytes = process.memory_info().rss - before_bytes
    # Objects take a few times what is counted; what was generated is some 500 MB as events.
    assert grown_bytes < num_clients * 8 * buffer_bytes
