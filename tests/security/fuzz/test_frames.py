"""Frames of HTTP/2 and gRPC that no client writes: they harm none but their own connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from pathlib import Path

import pytest

from pagewire.kit import listener
from pagewire.kit.sockets import cannot_listen
from tests.pagewire.kit.echo_service import SERVICE, handler_of, start_echo
from tests.security.fuzz.messages import damaged
from tests.security.fuzz.test_rpc import ROUNDS, SEED

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
END_STREAM, END_HEADERS = 1, 4
ANSWER_TIMEOUT_S = 60.0


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


def message(length: int, content: bytes, compressed: int = 0) -> bytes:
    """A message of gRPC in a frame that ends the stream."""
    return frame(DATA, END_STREAM, 1, bytes([compressed]) + struct.pack(">I", length) + content)


OPEN = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, headers())
GOOD = OPEN + message(1, b"x")
NO_TEXT = (
    PREFACE
    + frame(SETTINGS, 0, 0)
    + frame(HEADERS, END_HEADERS, 1, headers(b"/\xfa/x"))
    + message(1, b"x")
)
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


async def until_answered(target: str) -> None:
    """Ask until the server answers; it may be another one that is just coming."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        while True:
            with contextlib.suppress(OSError):  # a socket's file may not be there yet
                if await end_of(target, GOOD) == "answer":
                    return
            # A file that is not there yet fails at once, and the server runs on this loop.
            await asyncio.sleep(0)


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
            # It ends with the server, so that the next one is another.
            assert await end_of(echo.server.address, NO_TEXT) is not None
            await until_answered(echo.server.address)
        assert await echo.answer("unary_unary", wait_for_ready=True) == [b"well"]
        go_on.set()
        assert await running == [b"whole"]


async def test_running_calls_hold_up_no_second_try_to_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_context: object) -> bytes:
        begun.set()
        await go_on.wait()
        return b"whole"

    def refuse(address: str) -> None:
        monkeypatch.undo()
        raise cannot_listen(address, "somebody has it for now")

    both = {"unary_unary": answer, "stream_unary": slow}
    handlers = {kind: handler_of(kind, act) for kind, act in both.items()}
    async with start_echo("127.0.0.1:0", **handlers) as echo:
        running = asyncio.create_task(echo.answer("stream_unary"))
        await begun.wait()
        # They own what the core writes to until it says that nobody calls any more.
        of_grpc = [t for t in asyncio.all_tasks() if "cython" in type(t.get_coro()).__module__]
        assert len(of_grpc) > len(handlers)
        monkeypatch.setattr(listener, "check_bindable", refuse)
        assert await end_of(echo.server.address, NO_TEXT) is not None
        await until_answered(echo.server.address)
        assert listener.check_bindable is not refuse
        assert not any(task.cancelled() for task in of_grpc)
        go_on.set()
        assert await running == [b"whole"]


async def test_no_frames_stop_the_server() -> None:
    generator = random.Random(SEED)
    frames = [*HOSTILE.values(), *(damaged(GOOD, generator) for _ in range(50 * ROUNDS))]
    async with start_echo(unary_unary=handler_of("unary_unary", answer)) as echo:
        for content in frames:
            with contextlib.suppress(ConnectionError):
                await send(echo.server.address, content)
        await until_answered(echo.server.address)
        assert await echo.answer("unary_unary", wait_for_ready=True) == [b"well"]
