"""A service's servers: addresses, health, reflection, the order of stopping."""

import asyncio
import math
import socket
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pagewire.kit.channels import open_channel
from pagewire.kit.config import ConfigError, load_config, to_argv
from pagewire.kit.errors import FailedPreconditionError, UnauthenticatedError
from pagewire.kit.healthcheck import check
from pagewire.kit.server import ServerConfig, ServiceServer

from .echo_service import SERVICE, handler_of, start_echo


def make_server(**config) -> ServiceServer:
    return ServiceServer(ServerConfig(**config), SERVICE, [])


async def hello(_context) -> bytes:
    return b"hello"


async def test_port_zero_is_replaced_by_the_real_one():
    async with start_echo("127.0.0.1:0", unary_unary=handler_of("unary_unary", hello)) as echo:
        assert int(echo.server.address.removeprefix("127.0.0.1:")) > 0
        assert await echo.answer("unary_unary") == [b"hello"]


async def test_it_is_alive_before_it_serves_and_says_why_not():
    server = make_server(admin_listen="127.0.0.1:0")
    await server.start()
    try:
        for address in (server.address, server.admin_address):
            assert (await check(address)).serving
            status = await check(address, SERVICE)
            assert (status.status, status.reason) == ("NOT_SERVING", "starting")
        await server.set_serving(True)
        assert (await check(server.admin_address, SERVICE)).serving
        await server.set_serving(False, "no worker")
        assert (await check(server.address, SERVICE)).reason == "no worker"
    finally:
        await server.stop(0)


async def test_reflection_lists_the_services_of_each_port():
    async def names(address: str) -> set[str]:
        async with open_channel(address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            call = stub.ServerReflectionInfo(iter([request]))
            answer = await call.read()
            return {service.name for service in answer.list_services_response.service}

    server = make_server(admin_listen="127.0.0.1:0")
    await server.start()
    try:
        assert "pagewire.v1.AdminService" in await names(server.admin_address)
        assert "pagewire.v1.AdminService" not in await names(server.address)
    finally:
        await server.stop(0)
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        assert {SERVICE, "grpc.health.v1.Health"} <= await names(echo.server.address)


async def test_a_port_in_use_is_refused_with_the_reason_and_nothing_stays_bound(tmp_path):
    first = make_server()
    await first.start()
    try:
        second = make_server(listen=f"unix:{tmp_path}/s", admin_listen=first.address)
        with pytest.raises(FailedPreconditionError, match="address already in use"):
            await second.start()
        assert list(tmp_path.iterdir()) == []
        assert (await check(first.address)).serving
    finally:
        await first.stop(0)


async def test_a_foreign_address_is_refused_with_the_reason():
    with pytest.raises(FailedPreconditionError, match=r"cannot listen on 192\.0\.2\.1:0"):
        await make_server(listen="192.0.2.1:0").start()


async def test_a_stale_socket_file_gives_way_and_is_gone_after_stop(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = make_server(listen=f"unix:{path}")
    await server.start()
    assert (await check(f"unix:{path}")).serving
    await server.stop(0)
    assert not path.exists()


async def test_a_socket_file_that_somebody_serves_is_left_alone(tmp_path):
    first = make_server(listen=f"unix:{tmp_path}/s")
    await first.start()
    try:
        with pytest.raises(FailedPreconditionError, match="another process listens"):
            await make_server(listen=f"unix:{tmp_path}/s").start()
        assert (await check(first.address)).serving
    finally:
        await first.stop(0)


async def test_stop_reports_not_serving_then_lets_running_calls_end():
    entered, release = asyncio.Event(), asyncio.Event()

    async def act(context):
        entered.set()
        await release.wait()
        return b"done"

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        await echo.server.set_serving(True)
        watch = health_pb2_grpc.HealthStub(echo.channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE)
        )
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        running = asyncio.create_task(echo.answer("unary_unary"))
        await entered.wait()
        stopping = asyncio.create_task(echo.server.stop(60))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await echo.answer("unary_unary")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        release.set()
        assert await running == [b"done"]
        await stopping


async def test_quiet_is_counted_from_where_a_call_began_or_ended_last(monkeypatch):
    async def told(last_s):
        found.append(last_s())

    found: list[float] = []
    monkeypatch.setattr("pagewire.kit.server.wait_quiet", told)
    entered, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def act(context):
        context.add_done_callback(lambda _: ended.set())
        entered.set()
        await release.wait()
        return b"done"

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        await echo.server.wait_quiet()
        begun_s = time.monotonic()
        running = asyncio.create_task(echo.answer("unary_unary"))
        await entered.wait()
        await echo.server.wait_quiet()
        ended_s = time.monotonic()
        release.set()
        await running
        await ended.wait()
        await echo.server.wait_quiet()
        await echo.server.wait_quiet(lambda: math.inf)
    before, between, after, of_others = found
    assert before < begun_s < between < ended_s < after < of_others == math.inf


async def test_calls_that_outlast_the_grace_are_cut():
    entered = asyncio.Event()

    async def act(context):
        entered.set()
        await asyncio.Event().wait()

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        running = asyncio.create_task(echo.answer("unary_unary"))
        await entered.wait()
        await echo.server.stop(0)
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await running
    assert cut.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_stop_may_be_called_twice_and_before_start():
    server = make_server(admin_listen="127.0.0.1:0")
    await server.stop(0)
    await server.start()
    await server.stop(0)
    await server.stop(0)


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--listen=nowhere", "must be host:port"),
        ("--listen=unix:relative", "must be host:port (port 0: any free one) or unix:/path"),
        ("--listen=unix:/" + "x" * 120, "at most 107 bytes"),
        ("--admin-listen=h:70000", "--admin-listen h:70000"),
        ("--metrics-port=70000", "between 0 and 65535"),
        ("--drain-timeout=-1", "--drain-timeout -1: must not be negative"),
        ("--log-level=loud", "must be one of debug, info, warning, error"),
    ],
)
def test_a_bad_server_setting_is_one_clear_line(flag, part):
    with pytest.raises(ConfigError) as caught:
        load_config(ServerConfig, prog="x", argv=[flag], env={})
    assert part in str(caught.value)


def test_server_settings_reach_a_child_as_flags():
    config = ServerConfig(listen="unix:/a/b", drain_timeout_s=2.0)
    assert to_argv(config, env={}) == ["--listen=unix:/a/b", "--drain-timeout=2.0"]


async def test_more_connections_than_the_limit_are_closed():
    server = make_server(max_connections=1)
    await server.start()
    try:
        own = [("grpc.use_local_subchannel_pool", 1)]  # else the two share a connection
        async with (
            open_channel(server.address, options=own) as first,
            open_channel(server.address, options=own) as second,
        ):
            await health_pb2_grpc.HealthStub(first).Check(health_pb2.HealthCheckRequest())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_pb2_grpc.HealthStub(second).Check(health_pb2.HealthCheckRequest())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await health_pb2_grpc.HealthStub(first).Check(health_pb2.HealthCheckRequest())
    finally:
        await server.stop(0)


async def test_a_services_own_interceptors_leave_its_administration_alone():
    class RefuseAll(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation, details):
            raise UnauthenticatedError("no key")

    config = ServerConfig(admin_listen="127.0.0.1:0")
    server = ServiceServer(config, SERVICE, [], interceptors=[RefuseAll()])
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await check(server.admin_address)).serving
    finally:
        await server.stop(0)
