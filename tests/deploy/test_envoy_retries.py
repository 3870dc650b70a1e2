"""What sidecars try again: calls that nobody began. Real Envoys, gateways that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest

from gateway.http.errors import error_response
from pagewire.cli.ready import GATEWAY_SERVICE
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import (
    NotBegunError,
    PagewireError,
    QueueFullError,
    ServiceUnavailableError,
)
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.v1 import inference_pb2, inference_pb2_grpc
from tests.deploy.mesh import Layout, Mesh
from tests.deploy.pod import Pod

TIMEOUT_S = 240.0
NUM_GATEWAYS = 2
WAYS = ("http", "unary", "stream")


class Sidecars(Mesh):
    """The sidecars of a client and of gateways; the test plays the gateways."""

    def _pod(self, name: str, **more: Any) -> Pod:
        pod = super()._pod(name, **more)
        pod._command = None
        return pod


@pytest.fixture(scope="module")
def sidecars() -> Iterator[Sidecars]:
    mesh = Sidecars(Layout(num_gateways=NUM_GATEWAYS))
    try:
        for pod in (mesh["client"], *mesh.role("gateway")):
            pod.start_sidecar()
            mesh.wait(pod.ready, pod.name)
        yield mesh
    finally:
        mesh.close()


class ScriptedGateway(inference_pb2_grpc.InferenceServiceServicer):
    """Answers every call alike: well, with `error`, or by cutting the connection."""

    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.error: PagewireError | None = None
        self.cuts = False
        self.num_calls = 0
        self._http: asyncio.Server | None = None
        self._grpc = ServiceServer(
            ServerConfig(listen=f"{ip}:50050"),
            GATEWAY_SERVICE,
            [lambda s: inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, s)],
        )

    async def CountTokens(self, request: Any, context: Any) -> Any:
        self._call()
        return inference_pb2.CountTokensResponse()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self._call()
        yield inference_pb2.GenerateResponse()

    async def start(self) -> None:
        await self._grpc.start()
        await self._grpc.set_serving(True)
        self._http = await asyncio.start_server(self._serve_http, self.ip, 8000)

    async def stop(self) -> None:
        """Be gone at once: nobody listens any more."""
        await self._grpc.stop(0)
        if self._http is not None:
            self._http.close()
            self._http = None

    def _call(self) -> None:
        self.num_calls += 1
        if self.error is not None:
            raise self.error

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or b"0"))
            status, headers, body = 200, list[tuple[bytes, bytes]](), b"{}"
            if not head.startswith(b"get /health"):
                try:
                    self._call()
                except PagewireError as error:
                    answer = error_response(error, "")
                    status, headers, body = answer.status_code, answer.raw_headers, answer.body
                if self.cuts:
                    writer.transport.abort()
                    return
            lines = [b"HTTP/1.1 %d x" % status, *(b"%s: %s" % pair for pair in headers)]
            if not headers:
                lines.append(b"content-length: %d" % len(body))
            writer.write(b"\r\n".join([*lines, b"connection: close", b"", b""]) + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the sidecar had a connection to spare
        finally:
            writer.close()


async def until_all_are_chosen(
    mesh: Sidecars, playing: list[ScriptedGateway], way: str, cluster: str
) -> None:
    """Call until all have answered, and not because none was known to be healthy.

    Envoy's figures tell of a replica before the threads that choose know it.
    """
    panics = f"cluster.{cluster}.lb_healthy_panic"
    while True:
        num_panics = mesh["client"].stats(panics)
        while not all(gateway.num_calls for gateway in playing):
            await outcome(mesh, way)
        for gateway in playing:
            gateway.num_calls = 0
        if mesh["client"].stats(panics) == num_panics:
            return


@asynccontextmanager
async def gateways(mesh: Sidecars) -> AsyncIterator[list[ScriptedGateway]]:
    """Run the gateways, and within the block have the client's sidecar choose among all."""
    playing = [ScriptedGateway(pod.ip) for pod in mesh.role("gateway")]
    for gateway in playing:
        await gateway.start()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await until_all_are_chosen(mesh, playing, "http", "openai")
            await until_all_are_chosen(mesh, playing, "unary", "inference")
        yield playing
    finally:
        for gateway in playing:
            await gateway.stop()


async def outcome(mesh: Sidecars, way: str) -> str:
    """Make one call through the client's sidecar, and say how it ended."""
    if way == "http":
        async with httpx.AsyncClient(base_url=mesh.http_url, timeout=TIMEOUT_S) as client:
            answer = await client.post("/v1/completions", json={"prompt": "x"})
        return "OK" if answer.status_code == 200 else str(answer.status_code)
    options = (("grpc.enable_retries", 0),)
    async with open_channel(mesh.grpc_target, options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        try:
            if way == "unary":
                await stub.CountTokens(inference_pb2.CountTokensRequest(), timeout=TIMEOUT_S)
            else:
                call = stub.Generate(inference_pb2.GenerateRequest(), timeout=TIMEOUT_S)
                assert [message async for message in call]
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


@pytest.mark.parametrize("way", WAYS)
async def test_what_a_gateway_refused_before_it_began_goes_to_another(
    sidecars: Sidecars, way: str
) -> None:
    async with gateways(sidecars) as (one, other):
        one.error = NotBegunError("not ready", retry_after_s=1.0)
        # A replica is chosen by chance: enough calls meet the one that refuses.
        while not one.num_calls:
            assert await outcome(sidecars, way) == "OK"
        assert other.num_calls > 0


@pytest.mark.parametrize("way", WAYS)
async def test_what_failed_after_it_was_admitted_runs_once(sidecars: Sidecars, way: str) -> None:
    async with gateways(sidecars) as both:
        for gateway in both:
            gateway.error = ServiceUnavailableError("the engine was lost", reason="ENGINE_LOST")
        ended = await outcome(sidecars, way)
        assert ended == ("503" if way == "http" else "UNAVAILABLE")
        assert sum(gateway.num_calls for gateway in both) == 1


async def test_a_connection_that_breaks_in_the_midst_of_a_request_is_no_second_one(
    sidecars: Sidecars,
) -> None:
    async with gateways(sidecars) as both:
        for gateway in both:
            gateway.cuts = True
        assert await outcome(sidecars, "http") == "503"
        assert sum(gateway.num_calls for gateway in both) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_full_queue_is_told_and_not_tried_elsewhere(sidecars: Sidecars, way: str) -> None:
    async with gateways(sidecars) as both:
        for gateway in both:
            gateway.error = QueueFullError("full", retry_after_s=1.0)
        ended = await outcome(sidecars, way)
        assert ended == ("429" if way == "http" else "RESOURCE_EXHAUSTED")
        assert sum(gateway.num_calls for gateway in both) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_gateway_that_nobody_listens_for_loses_no_call(
    sidecars: Sidecars, way: str
) -> None:
    """Its sidecar is there and says so, until the next health check leaves the replica out."""
    async with gateways(sidecars) as (one, other):
        await one.stop()
        assert {await outcome(sidecars, way) for _ in range(12)} == {"OK"}
        assert (one.num_calls, other.num_calls) == (0, 12)
