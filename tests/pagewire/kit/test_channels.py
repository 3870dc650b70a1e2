"""Channels: forms of targets, and ids carried on all kinds of calls."""

import grpc
import pytest

from pagewire.kit import context
from pagewire.kit.channels import check_target, open_channel
from pagewire.kit.health import SERVING
from pagewire.kit.healthcheck import check
from pagewire.kit.tls import PeerTls

from .echo_service import KINDS, handler_of, start_echo

TRACE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@pytest.mark.parametrize(
    "target",
    [
        *("127.0.0.1:80", "name:50051", "[::1]:5", "unix:/a/b", "unix:///a/b"),
        *("dns:///name:50051", "dns:name:50051", "dns://1.1.1.1/name:50051"),
    ],
)
def test_a_target_of_a_known_form_is_accepted(target):
    assert check_target(target) == target


@pytest.mark.parametrize(
    "target",
    [
        *("", "name", "name:0", "name:70000", "unix:", "a b:1", "::1:5"),
        *("dns:", "dns:///name", "dns:///name:", "dns:///name:x", "dns:///:1"),
    ],
)
def test_any_other_target_is_refused(target):
    with pytest.raises(ValueError, match=r"must be host:port"):
        check_target(target)


async def seen_ids(_context) -> bytes:
    return f"{context.request_id()} {context.trace_id()}".encode()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_carries_the_ids_of_its_caller(kind):
    async with start_echo(**{kind: handler_of(kind, seen_ids)}) as echo:
        with context.bind(request_id="r1", traceparent=TRACE):
            assert await echo.answer(kind) == [f"r1 {'ab' * 16}".encode()]


async def test_metadata_that_the_caller_gives_wins():
    async with start_echo(unary_unary=handler_of("unary_unary", seen_ids)) as echo:
        with context.bind(request_id="r1", traceparent=TRACE):
            answer = await echo.answer("unary_unary", metadata=(("x-request-id", "mine"),))
    assert answer == [f"mine {'ab' * 16}".encode()]


async def test_a_call_without_ids_gets_some_at_the_server():
    async with start_echo(unary_unary=handler_of("unary_unary", seen_ids)) as echo:
        (answer,) = await echo.answer("unary_unary")
    request_id, trace_id = answer.decode().split()
    assert (len(request_id), len(trace_id)) == (32, 32)


@pytest.mark.parametrize(
    ("target", "is_secure"),
    [("unix:/s", False), ("unix-abstract:s", False), ("unix-7:1", True), ("unixhost:1", True)],
)
async def test_only_a_unix_socket_is_plain_where_tls_is_asked_for(monkeypatch, target, is_secure):
    opened = []
    for name in ("secure_channel", "insecure_channel"):
        original = getattr(grpc.aio, name)

        def spy(*args, original=original, name=name, **kwargs):
            opened.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(grpc.aio, name, spy)
    async with open_channel(target, tls=PeerTls(grpc.ssl_channel_credentials(), "worker")):
        assert opened == ["secure_channel" if is_secure else "insecure_channel"]


async def test_a_unix_socket_is_a_target_like_any_other(tmp_path):
    async def act(context):
        return b"hello"

    async with start_echo(f"unix:{tmp_path}/s", unary_unary=handler_of("unary_unary", act)) as echo:
        assert await echo.answer("unary_unary") == [b"hello"]


async def test_a_dns_target_reaches_the_server():
    async def act(context):
        return b"hello"

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        port = echo.server.address.rpartition(":")[2]
        assert (await check(f"dns:///localhost:{port}")).serving


async def test_a_backend_that_is_not_serving_is_left_out_when_the_channel_looks_at_health():
    async def act(context):
        return b"hello"

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        port = echo.server.address.rpartition(":")[2]
        target = f"dns:///localhost:{port}"
        async with open_channel(target, health_service=echo.server.service_name) as channel:
            call = channel.unary_unary("/pagewire.test.Echo/unary_unary")(
                b"x", wait_for_ready=True, timeout=60
            )
            assert not call.done()
            await echo.server.set_serving(True)
            assert await call == b"hello"
    assert SERVING == 1
