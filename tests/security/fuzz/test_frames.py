"""Frames of HTTP/2 and gRPC that no client writes: they harm none but their own connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from pathlib import Path

import grpc
import pytest

from tests.pagewire.kit.echo_service import SERVICE, handler_of, start_echo
from tests.security.fuzz.messages import damaged
from tests.security.fuzz.test_rpc import ROUNDS, SEED

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
END_STREAM, END_HEADERS = 1, 4
ANSWER_TIMEOUT_S = 60.0
pytestmark = pytest.mark.timeout(300 * ROUNDS)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int = -1) -> bytes:
    """One frame of HTTP/2; its length may lie."""
    size = len(payload) if length < 0 else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: bytes = f"/{SERVICE}/unary_unary".encode()) -> bytes:
    """A header block without any compression."""
    pairs = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"),
        (b":path", path), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    ]  # fmt: skip
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)


def _text(text: bytes) -> bytes:
    """A length of up to 7 bits, more of it after, and the text."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, length = len(text) - 127, bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + text


def message(length: int, content: bytes, compressed: int = 0, stream: int = 1) -> bytes:
    """A message of gRPC in a frame that ends the stream."""
    payload = bytes([compressed]) + struct.pack(">I", length) + content
    return frame(DATA, END_STREAM, stream, payload)


def call(stream: int, path: bytes = f"/{SERVICE}/unary_unary".encode()) -> bytes:
    """A whole call on a connection that is open."""
    opening = frame(HEADERS, END_HEADERS, stream, headers(path))
    return opening + message(1, b"x", stream=stream)


OPEN = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, headers())
GOOD = OPEN + message(1, b"x")
NO_TEXT = b"/\xfa/x"
HOSTILE = {
    "a message of 4 GiB": OPEN + message(2**32 - 1, b"x" * 1000),
    "a message that is said to be longer": OPEN + message(100, b"x"),
    "a message that is said to be shorter": OPEN + message(1, b"xyz"),
    "a compressed message of no encoding": OPEN + message(1, b"x", compressed=1),
    "a flag that does not exist": OPEN + message(1, b"x", compressed=255),
    "no message": OPEN + frame(DATA, END_STREAM, 1),
    "data of a stream that is not open": PREFACE + frame(SETTINGS, 0, 0) + frame(DATA, 1, 7, b"x"),
    "an even stream": PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 5, 2, headers()),
    "a frame of 16 MiB": OPEN + frame(DATA, END_STREAM, 1, b"x" * 1000, length=2**24 - 1),
    "settings of a wrong size": PREFACE + frame(SETTINGS, 0, 0, b"x"),
    "a window of nothing": OPEN + frame(WINDOW_UPDATE, 0, 1, bytes(4)),
    "continuations without an end": PREFACE
    + frame(SETTINGS, 0, 0)
    + frame(HEADERS, 0, 1, headers())
    + frame(CONTINUATION, 0, 1, b"\0\x01a\x01b" * 2000) * 200,
    "headers of a megabyte": PREFACE
    + frame(SETTINGS, 0, 0)
    + frame(HEADERS, 0, 1, headers())
    + frame(CONTINUATION, 0, 1, b"\0\x01a" + _text(b"b" * 15_000)) * 70
    + frame(CONTINUATION, END_HEADERS, 1, b"\0\x01a\x01b"),
    "no HTTP/2": b"GET / HTTP/1.1\r\n\r\n" * 10,
}


async def connect(target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to a server's address."""
    if target.startswith("unix:"):
        return await asyncio.open_unix_connection(target.removeprefix("unix:"))
    host, _, port = target.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def end_of(target: str, sent: bytes) -> str | None:
    """Send the bytes and say what ends, the stream by an answer or all; None: nothing."""
    reader, writer = await connect(target)
    try:
        writer.write(sent)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind in (HEADERS, DATA) and flags & END_STREAM:
                    return "answer"
                if kind in (RST_STREAM, GOAWAY):
                    return "all"
    except (asyncio.IncompleteReadError, ConnectionError):
        return "all"
    except TimeoutError:
        return None
    finally:
        writer.transport.abort()


async def answer(_context: object) -> bytes:
    return b"well"


async def send(target: str, content: bytes) -> None:
    """Send the bytes and leave; some are waited for in vain, as those of a slow client are."""
    _, writer = await connect(target)
    with contextlib.suppress(ConnectionError):
        writer.write(content)
        await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize("size", [2**32 - 1, 2**31, 1024 * 1024])
async def test_a_message_over_the_limit_is_refused_before_it_has_come(size: int) -> None:
    async with start_echo(unary_unary=handler_of("unary_unary", answer)) as echo:
        assert await end_of(echo.server.address, OPEN + message(size, b"x" * 1000)) is not None


async def endings(target: str, sent: bytes, num_streams: int) -> dict[int, str]:
    """Send the bytes and say how streams end, until so many have."""
    reader, writer = await connect(target)
    ended: dict[int, str] = {}
    try:
        writer.write(sent)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while len(ended) < num_streams:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                assert kind != GOAWAY, payload
                if kind == RST_STREAM:
                    ended.setdefault(stream, "reset")
                elif kind in (HEADERS, DATA) and flags & END_STREAM:
                    ended[stream] = "answer"
    finally:
        writer.transport.abort()
    return ended


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
async def test_a_path_that_is_no_text_ends_no_call_and_no_server(
    scheme: str, tmp_path: Path
) -> None:
    """Of itself grpc.aio stops its server for it, and cancels all that runs."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_context: object) -> bytes:
        begun.set()
        await go_on.wait()
        return b"whole"

    listen = "127.0.0.1:0" if scheme == "tcp" else f"unix:{tmp_path}/s"
    both = {"unary_unary": answer, "stream_unary": slow}
    handlers = {kind: handler_of(kind, act) for kind, act in both.items()}
    async with start_echo(listen, **handlers) as echo:
        running = asyncio.create_task(echo.answer("stream_unary"))
        await begun.wait()
        for _ in range(3):
            opening = PREFACE + frame(SETTINGS, 0, 0)
            assert await endings(echo.server.address, opening + call(1, NO_TEXT), 1)
        assert await echo.answer("unary_unary") == [b"well"]
        go_on.set()
        assert await running == [b"whole"]


async def test_calls_that_come_with_a_path_that_is_no_text_are_answered() -> None:
    """All in one go, so that the server accepts them at the same time, the bad among the good."""
    streams = range(1, 200, 2)
    paths = {stream: NO_TEXT for stream in streams if stream % 3 == 0}
    sent = b"".join(call(s, paths[s]) if s in paths else call(s) for s in streams)
    async with start_echo(unary_unary=handler_of("unary_unary", answer)) as echo:
        opening = PREFACE + frame(SETTINGS, 0, 0)
        ended = await endings(echo.server.address, opening + sent, len(streams))
    assert ended == dict.fromkeys(streams, "answer")


async def test_paths_that_are_no_text_leave_nothing_behind() -> None:
    def named(name: str) -> list[asyncio.Task[object]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == name]

    async with start_echo(unary_unary=handler_of("unary_unary", answer)) as echo:
        await echo.answer("unary_unary")
        accepting = named("unregistered calls")
        for _ in range(5):
            sent = b"".join(call(stream, NO_TEXT) for stream in range(1, 200, 2))
            await endings(echo.server.address, PREFACE + frame(SETTINGS, 0, 0) + sent, 100)
        if refusing := named("unregistered call"):
            # The core says a moment after the answer that it is through with a call.
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await asyncio.wait(refusing)
        assert not named("unregistered call")
        assert named("unregistered calls") == accepting != []


async def test_a_method_that_nobody_registered_is_unimplemented_and_a_stop_ends_its_calls() -> None:
    async with start_echo(unary_unary=handler_of("unary_unary", answer)) as echo:
        for path in (f"/{SERVICE}/other", "/other/other", "/"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo.channel.unary_unary(path)(b"x")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not any("unregistered" in task.get_name() for task in asyncio.all_tasks())


async def test_no_frames_stop_the_server() -> None:
    generator = random.Random(SEED)
    frames = [*HOSTILE.values(), *(damaged(GOOD, generator) for _ in range(50 * ROUNDS))]
    async with start_echo(unary_unary=handler_of("unary_unary", answer)) as echo:
        for content in frames:
            with contextlib.suppress(ConnectionError):
                await send(echo.server.address, content)
        assert await end_of(echo.server.address, GOOD) == "answer"
        assert await echo.answer("unary_unary") == [b"well"]
