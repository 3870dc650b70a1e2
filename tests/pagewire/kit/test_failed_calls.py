"""What a call that fails leaves in memory: nothing, also when no garbage is collected."""

import asyncio
import gc
import weakref
from contextlib import contextmanager

import grpc
import pytest

from pagewire.kit.errors import NotFoundError, UnauthenticatedError
from pagewire.kit.tasks import cancel_and_wait

from .echo_service import KINDS, handler_of, start_echo


class Held:
    """Something that a frame of the call holds."""


@contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_fails_is_let_go_of_at_once(kind):
    held = []

    async def act(context):
        mine = Held()
        held.append(weakref.ref(mine))
        raise NotFoundError("no such model")

    with without_collector():
        async with start_echo(**{kind: handler_of(kind, act)}) as echo:
            await fail(echo, kind, grpc.StatusCode.NOT_FOUND)
            await echo.server.stop(5)  # the handler has ended when this returns
            assert [ref() for ref in held] == [None]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_request_of_a_call_that_fails_goes_with_it(kind):
    requests = []

    class Message:
        def __init__(self, data):
            requests.append(weakref.ref(self))

    async def read_and_fail(request, context):
        if kind.startswith("stream"):
            request = await anext(aiter(request))
        raise NotFoundError(f"nothing for {request}")

    async def read_and_fail_later(request, context):
        await read_and_fail(request, context)
        yield b""

    handler = read_and_fail_later if kind.endswith("stream") else read_and_fail
    with without_collector():
        async with start_echo(deserializer=Message, **{kind: handler}) as echo:
            await fail(echo, kind, grpc.StatusCode.NOT_FOUND)
            await echo.server.stop(5)
            assert [ref() for ref in requests] == [None]


async def test_a_call_that_an_interceptor_refuses_is_let_go_of_at_once():
    held = []

    class Refuse(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation, details):
            if not details.method.startswith("/pagewire.test"):
                return await continuation(details)
            mine = Held()
            held.append(weakref.ref(mine))
            raise UnauthenticatedError("no key")

    async def act(context):
        return b""

    kind = "unary_unary"
    with without_collector():
        async with start_echo(interceptors=[Refuse()], **{kind: handler_of(kind, act)}) as echo:
            await fail(echo, kind, grpc.StatusCode.UNAUTHENTICATED)
            await echo.server.stop(5)
            assert [ref() for ref in held] == [None]


async def test_a_cancelled_wait_for_tasks_keeps_none_of_them():
    async def waits_on():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)

    async def ends_them():
        mine = Held()
        task = asyncio.create_task(waits_on())
        held.extend((weakref.ref(mine), weakref.ref(task)))
        await asyncio.sleep(0)
        is_ending.set()
        await cancel_and_wait(task)

    held, is_ending = [], asyncio.Event()
    with without_collector():
        ending = asyncio.create_task(ends_them())
        await is_ending.wait()
        ending.cancel()
        await asyncio.wait((ending,))
        assert ending.cancelled()
        del ending
        assert [ref() for ref in held] == [None, None]


async def fail(echo, kind, code):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await echo.answer(kind)
    assert caught.value.code() is code
