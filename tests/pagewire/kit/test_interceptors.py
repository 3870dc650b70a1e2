"""What every RPC passes through, on real servers, for all kinds of handlers."""

import asyncio
import contextlib
import json
import re

import grpc
import pytest
from grpc_health.v1 import health_pb2
from prometheus_client import generate_latest

from pagewire.kit.errors import (
    InternalError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
    from_rpc_error,
)
from pagewire.kit.rpc_handlers import wrap_handler

from .echo_service import KINDS, SERVICE, handler_of, start_echo


async def status_of(echo, kind: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await echo.answer(kind)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
async def test_a_domain_error_becomes_its_status(kind):
    async def act(context):
        raise NotFoundError("no such model", reason="MODEL_NOT_FOUND")

    async with start_echo(**{kind: handler_of(kind, act)}) as echo:
        error = await status_of(echo, kind)
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such model")
    assert from_rpc_error(error).reason == "MODEL_NOT_FOUND"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_bug_becomes_internal_with_an_opaque_id_and_nothing_else(kind):
    async def act(context):
        raise ValueError("secret-path")

    async with start_echo(**{kind: handler_of(kind, act)}) as echo:
        error = await status_of(echo, kind)
    received = from_rpc_error(error)
    assert type(received) is InternalError
    assert re.fullmatch("[0-9a-f]{16}", received.metadata["error_id"])
    everything = repr((error.details(), tuple(error.trailing_metadata())))
    assert "secret" not in everything
    assert "ValueError" not in everything


async def test_the_log_has_the_bug_under_the_id_that_the_client_got(caplog):
    async def act(context):
        raise ValueError("secret-path")

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        error = from_rpc_error(await status_of(echo, "unary_unary"))
    (bug,) = [r.msg for r in caplog.records if "rpc_bug" in str(r.msg)]
    assert bug["error_id"] == error.metadata["error_id"]
    assert "secret-path" in bug["exception"]
    assert bug["request_id"]


async def test_a_stream_handler_that_writes_is_mapped_like_one_that_yields():
    async def write_then_fail(request, context):
        await context.write(b"one")
        raise NotFoundError("gone")

    async with start_echo(unary_stream=write_then_fail) as echo:
        call = echo.call("unary_stream")
        assert await call.read() == b"one"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_messages_of_both_styles_arrive_in_order():
    async def generate(request, context):
        for number in range(3):
            yield b"%d" % number

    async def echo_each(requests, context):
        async for message in requests:
            await context.write(message)

    async with start_echo(unary_stream=generate, stream_stream=echo_each) as echo:
        assert await echo.answer("unary_stream") == [b"0", b"1", b"2"]
        assert await echo.answer("stream_stream", b"x") == [b"x"]


async def test_abort_and_set_code_keep_their_meaning():
    async def aborts(request, context):
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "beyond")

    async def sets_code(request, context):
        context.set_code(grpc.StatusCode.ABORTED)
        context.set_details("set")
        yield b"one"

    async with start_echo(unary_unary=aborts, unary_stream=sets_code) as echo:
        aborted = await status_of(echo, "unary_unary")
        coded = await status_of(echo, "unary_stream")
    assert (aborted.code(), aborted.details()) == (grpc.StatusCode.OUT_OF_RANGE, "beyond")
    assert (coded.code(), coded.details()) == (grpc.StatusCode.ABORTED, "set")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_call_cancels_its_handler(kind):
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def act(context):
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with start_echo(**{kind: handler_of(kind, act)}) as echo:
        call = echo.call(kind)
        await entered.wait()
        call.cancel()
        await cancelled.wait()


@pytest.mark.parametrize("kind", KINDS)
async def test_work_that_is_cancelled_inside_the_service_does_not_leave_the_client_waiting(kind):
    async def act(context):
        work = asyncio.create_task(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(work.cancel)
        await work

    async with start_echo(**{kind: handler_of(kind, act)}) as echo:
        assert (await status_of(echo, kind)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_failed_write_does_not_leave_a_client_waiting_that_is_still_there():
    async def act(context):
        raise grpc.aio.InternalError("write failed")

    async with start_echo(unary_stream=handler_of("unary_stream", act)) as echo:
        assert (await status_of(echo, "unary_stream")).code() is grpc.StatusCode.INTERNAL


async def test_a_handler_that_fails_after_its_client_left_is_no_bug(caplog):
    entered, left = asyncio.Event(), asyncio.Event()

    async def act(context):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
            raise ValueError("in cleanup")

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        call = echo.call("unary_unary")
        await entered.wait()
        call.cancel()
        await left.wait()
        await echo.server.stop(5)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


async def test_a_write_to_a_client_that_left_is_no_bug(caplog):
    entered, failed = asyncio.Event(), asyncio.Event()

    async def write_after_leave(request, context):
        entered.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            await context.write(b"late")
        finally:
            failed.set()

    async with start_echo(unary_stream=write_after_leave) as echo:
        call = echo.call("unary_stream")
        await entered.wait()
        call.cancel()
        await failed.wait()
        await echo.server.stop(5)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


async def test_a_failing_call_to_a_peer_is_passed_on_as_what_it_stands_for():
    async def unreachable(context):
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(),
            details="failed to connect to 10.0.0.7",
        )

    async with start_echo(unary_unary=handler_of("unary_unary", unreachable)) as echo:
        error = await status_of(echo, "unary_unary")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "10.0.0.7" not in error.details()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_services_own_interceptor_raises_is_mapped_too(kind):
    class Refuse(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation, details):
            if details.method.startswith("/pagewire.test"):
                raise UnauthenticatedError("no key")
            return await continuation(details)

    async def act(context):
        return b""

    async with start_echo(interceptors=[Refuse()], **{kind: handler_of(kind, act)}) as echo:
        assert (await status_of(echo, kind)).code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_waits_for_no_message(kind):
    """A stranger without a key holds no call open by sending nothing."""

    class Refuse(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation, details):
            raise UnauthenticatedError("no key")

    async def act(context):
        return b""

    async with start_echo(interceptors=[Refuse()], **{kind: handler_of(kind, act)}) as echo:
        silent = echo.channel.stream_stream(f"/{SERVICE}/{kind}")()
        async with asyncio.timeout(20):
            assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_an_unknown_method_is_unimplemented():
    async def act(context):
        return b""

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        error = await status_of(echo, "unary_stream")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_calls_are_counted_by_method_and_code():
    async def act(context):
        raise NotFoundError("no")

    async def fine(context):
        return b""

    async with start_echo(
        unary_unary=handler_of("unary_unary", act), stream_stream=handler_of("stream_stream", fine)
    ) as echo:
        await status_of(echo, "unary_unary")
        await status_of(echo, "unary_unary")
        await echo.answer("stream_stream")
        await echo.server.stop(5)  # the last handlers have ended when this returns
        text = generate_latest(echo.server.registry).decode()
    method = 'method="/pagewire.test.Echo/'
    assert f'pagewire:rpc_handled_total{{code="NOT_FOUND",{method}unary_unary"}} 2.0' in text
    assert f'pagewire:rpc_handled_total{{code="OK",{method}stream_stream"}} 1.0' in text
    assert f'pagewire:rpc_in_flight{{{method}unary_unary"}} 0.0' in text


async def test_a_refused_call_is_logged_with_its_code_and_time(caplog):
    caplog.set_level("INFO", "pagewire.rpc")

    async def act(context):
        raise NotFoundError("no")

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        await status_of(echo, "unary_unary")
        await echo.server.stop(5)
    (line,) = [r.msg for r in caplog.records if r.name == "pagewire.rpc"]
    assert (line["code"], line["method"]) == ("NOT_FOUND", "/pagewire.test.Echo/unary_unary")
    assert line["duration_s"] >= 0
    assert json.dumps({key: value for key, value in line.items() if key != "exc_info"})


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_that_are_no_message_are_bad_input(kind, caplog):
    started = []

    async def read_first(request, context):
        if kind.startswith("stream"):
            request = await anext(aiter(request))
        started.append(request)
        return request.service.encode()

    async def read_first_and_yield(request, context):
        yield await read_first(request, context)

    handler = read_first_and_yield if kind.endswith("stream") else read_first
    decode = health_pb2.HealthCheckRequest.FromString
    async with start_echo(deserializer=decode, **{kind: handler}) as echo:
        for garbage in (b"\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo.answer(kind, garbage)
            error = from_rpc_error(caught.value)
            assert type(error) is InvalidRequestError, caught.value
            assert error.reason == "UNDECODABLE_MESSAGE"
        assert started == []
        assert await echo.answer(kind, b"\x0a\x02ab") == [b"ab"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_stream_that_reads_by_itself_hears_of_bytes_that_are_no_message():
    async def read(requests, context):
        await context.read()

    decode = health_pb2.HealthCheckRequest.FromString
    async with start_echo(deserializer=decode, stream_stream=read) as echo:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo.answer("stream_stream", b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_plain_function_is_refused_as_a_handler():
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    with pytest.raises(TypeError, match="async function"):
        wrap_handler(handler, lambda context: None)
