"""grpc.health.v1 behind a real server."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagewire.kit import health

from .echo_service import SERVICE, handler_of, start_echo

Response = health_pb2.HealthCheckResponse


async def hello(_context) -> bytes:
    return b"hello"


def watch(echo, service: str):
    stub = health_pb2_grpc.HealthStub(echo.channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=service))


async def test_a_watcher_that_leaves_takes_no_other_along():
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        leaving, staying = watch(echo, SERVICE), watch(echo, SERVICE)
        assert (await leaving.read()).status == Response.NOT_SERVING
        assert (await staying.read()).status == Response.NOT_SERVING
        leaving.cancel()
        await echo.server.set_serving(True)
        assert (await staying.read()).status == Response.SERVING
        await echo.server.set_serving(False, "why")
        assert (await staying.read()).status == Response.NOT_SERVING


async def test_an_unknown_name_is_watched_as_unknown_and_checked_as_not_found():
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        assert (await watch(echo, "no.Such").read()).status == Response.SERVICE_UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            stub = health_pb2_grpc.HealthStub(echo.channel)
            await stub.Check(health_pb2.HealthCheckRequest(service="no.Such"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_reason_of_any_text_fits_into_the_answer():
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        await echo.server.set_serving(False, "größer\n" * 1000)
        stub = health_pb2_grpc.HealthStub(echo.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert answer.status == Response.NOT_SERVING


async def test_watchers_are_bounded_and_those_that_leave_make_room(monkeypatch):
    monkeypatch.setattr(health, "MAX_WATCHERS", 2)
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        leaving, staying = watch(echo, SERVICE), watch(echo, "")
        await leaving.read()
        await staying.read()
        refused = watch(echo, SERVICE)
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        leaving.cancel()
        async with asyncio.timeout(20):
            while await watch(echo, SERVICE).read() is grpc.aio.EOF:
                pass
