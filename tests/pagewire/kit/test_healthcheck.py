"""The health client never raises for what the other side does."""

import socket

import pytest

from pagewire.kit.healthcheck import check

from .echo_service import SERVICE, handler_of, start_echo


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
