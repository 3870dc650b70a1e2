"""The health client never raises for what the other side does."""

import asyncio
import socket

import grpc
import pytest

from pagewire.kit.channels import open_channel
from pagewire.kit.healthcheck import check, wait_for_start

from .echo_service import SERVICE, Echo, handler_of, start_echo


async def hello(_context) -> bytes:
    return b"hello"


async def test_a_serving_service_is_reported_as_such():
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        await echo.server.set_serving(True)
        status = await check(echo.server.address, SERVICE)
    assert (status.serving, status.status, status.reason) == (True, "SERVING", "")


async def test_an_unknown_name_is_told_from_a_service_that_is_down():
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        assert (await check(echo.server.address, "no.Such")).status == "SERVICE_UNKNOWN"


async def test_nobody_there_is_unreachable(tmp_path):
    assert (await check(f"unix:{tmp_path}/absent")).status == "UNREACHABLE"


async def test_somebody_who_never_answers_is_a_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        status = await check(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
    assert (status.serving, status.status) == (False, "TIMEOUT")


async def test_a_target_without_a_valid_form_is_the_callers_mistake():
    with pytest.raises(ValueError, match="must be host:port"):
        await check("nowhere")


LONG_S = 3600.0
SHORT_S = 0.05


async def test_a_wait_for_a_start_ends_when_the_service_begins_to_serve():
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        waiting = asyncio.create_task(wait_for_start(echo.channel, SERVICE, LONG_S))
        await begin_again_and_again(echo, waiting)
        await waiting


async def test_a_wait_for_a_peer_that_is_not_there_yet_ends_when_it_begins_to_serve(tmp_path):
    address = f"unix:{tmp_path}/late.sock"
    async with open_channel(address) as channel:
        waiting = asyncio.create_task(wait_for_start(channel, SERVICE, LONG_S))
        await failure_to_connect(channel)
        async with start_echo(address, unary_unary=handler_of("unary_unary", hello)) as echo:
            await begin_again_and_again(echo, waiting)
            await waiting


async def test_a_service_that_serves_all_the_time_ends_no_wait():
    async with start_echo(unary_unary=handler_of("unary_unary", hello)) as echo:
        await echo.server.set_serving(True)
        waiting = asyncio.create_task(wait_for_start(echo.channel, SERVICE, LONG_S))
        for _ in range(20):  # by then its first answer has come
            assert (await check(echo.server.address, SERVICE)).serving
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_wait_for_a_start_is_bounded_and_raises_nothing(tmp_path):
    async with open_channel(f"unix:{tmp_path}/absent") as channel:
        await wait_for_start(channel, SERVICE, SHORT_S)


async def begin_again_and_again(echo: Echo, waiting: asyncio.Task[None]) -> None:
    """Stop and begin to serve until somebody who waits has seen both."""
    while not waiting.done():
        for serving in (False, True):
            await echo.server.set_serving(serving)
            await check(echo.server.address, SERVICE)  # meanwhile those who wait are told


async def failure_to_connect(channel: grpc.aio.Channel) -> None:
    """Wait until a first attempt to connect has failed."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
        await channel.wait_for_state_change(state)
        state = channel.get_state()
