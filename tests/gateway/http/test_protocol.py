"""Connections and heads within bounds: what never reaches the application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.http.protocol import ConnectionLimits
from gateway.http.server import HttpServer

GET = b"GET /x HTTP/1.1\r\nhost: h\r\n"
POST = b"POST /x HTTP/1.1\r\nhost: h\r\n"


class App:
    """Answers `ok` at once, or reads the whole body first; keeps what it saw."""

    def __init__(self, reads_body: bool = False) -> None:
        self.reads_body = reads_body
        self.paths: list[str] = []
        self.went: list[str] = []
        self.begun = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        self.begun.set()
        if self.hold is not None:
            message = await receive()
            while message["type"] != "http.disconnect":
                message = await receive()
            self.went.append(scope["path"])
            self.hold.set()
            return
        while self.reads_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if not message["more_body"]:
                break
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


class Peer:
    """A client that writes bytes as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def refusal(self) -> tuple[int, str]:
        """The status and reason of an error answer that ends the connection."""
        status, headers, body = await self.answer()
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == status
        assert headers["x-request-id"]
        assert headers["connection"] == "close"
        assert await self.closed()
        return status, headers["x-error-reason"]

    async def closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


@asynccontextmanager
async def serve(app: App, **limits: Any) -> AsyncIterator[Any]:
    """Run a server; gives a function that connects."""
    given = {
        "max_connections": 100, "max_header_bytes": 4096, "header_timeout_s": 20.0,
        "send_timeout_s": 20.0,
    } | limits  # fmt: skip
    server = HttpServer(app, "127.0.0.1", 0, ConnectionLimits(**given))
    await server.start()
    peers: list[Peer] = []

    async def connect() -> Peer:
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", server.port)))
        return peers[-1]

    try:
        yield connect
    finally:
        for peer in peers:
            peer.writer.close()
        await server.stop()


@pytest.mark.parametrize(
    "head",
    [
        GET + b"a: " + b"x" * 8000 + b"\r\n\r\n",
        GET + b"a" * 8000 + b": x\r\n\r\n",
        b"GET /" + b"x" * 8000 + b" HTTP/1.1\r\nhost: h\r\n\r\n",
        GET + b"".join(b"a%d: x\r\n" % i for i in range(300)) + b"\r\n",
        GET + b"a: " + b"x" * 8000,  # never ends
        b"GET /" + b"x" * 8000,
    ],
)
@pytest.mark.parametrize("piece", [1000, 100_000])
async def test_a_head_over_the_limit_is_431_however_it_comes(head: bytes, piece: int) -> None:
    app = App()
    async with serve(app) as connect:
        peer = await connect()
        for start in range(0, len(head), piece):
            await peer.say(head[start : start + piece])
        assert await peer.refusal() == (431, "HEADERS_TOO_LARGE")
        assert app.paths == []
        good = await connect()
        await good.say(GET + b"\r\n")
        assert (await good.answer())[0] == 200


async def test_a_client_cannot_make_the_server_hold_a_head_of_64_mb() -> None:
    async with serve(App(), max_header_bytes=65536) as connect:
        peer = await connect()
        await peer.say(GET + b"a: ")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            for _ in range(64):
                await peer.say(b"x" * 1024 * 1024)
            await peer.reader.readuntil(b"the end of it")


async def test_heads_of_several_requests_are_counted_apart() -> None:
    app = App(reads_body=True)
    async with serve(app) as connect:
        peer = await connect()
        body = b"y" * 3000
        post = POST + b"a: " + b"x" * 3000 + b"\r\ncontent-length: 3000\r\n\r\n" + body
        await peer.say(post + post + post[:2000])
        await peer.say(post[2000:])
        for _ in range(3):
            assert (await peer.answer())[0] == 200


async def test_trailers_without_an_end_are_refused() -> None:
    async with serve(App(reads_body=True)) as connect:
        peer = await connect()
        await peer.say(POST + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n")
        await peer.say(b"0\r\na: ")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            for _ in range(64):
                await peer.say(b"x" * 65536)
            await peer.reader.readuntil(b"the end of it")


@pytest.mark.parametrize(
    "garbage", [b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET /\xff HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_http_is_400_in_openais_shape(garbage: bytes) -> None:
    async with serve(App()) as connect:
        peer = await connect()
        await peer.say(garbage)
        assert await peer.refusal() == (400, "MALFORMED_HTTP")


async def test_the_clients_id_is_on_a_refusal_too() -> None:
    async with serve(App()) as connect:
        peer = await connect()
        await peer.say(GET + b"x-request-id: mine\r\na: b\r\nbad header\r\n\r\n")
        assert (await peer.answer())[1]["x-request-id"] == "mine"


@pytest.mark.parametrize("start", [b"G", GET, GET + b"a: "])
async def test_a_head_that_does_not_end_in_time_is_408(start: bytes) -> None:
    async with serve(App(), header_timeout_s=0.2) as connect:
        peer = await connect()
        await peer.say(start)
        assert await peer.refusal() == (408, "HEADER_TIMEOUT")


async def test_a_head_that_comes_byte_by_byte_has_no_more_time() -> None:
    async with serve(App(), header_timeout_s=0.3) as connect:
        peer = await connect()

        async def drip() -> None:
            while True:
                await peer.say(b"a")
                await asyncio.sleep(0.02)

        await peer.say(GET)
        dripping = asyncio.create_task(drip())
        try:
            assert (await peer.answer())[0] == 408
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.parametrize("first", [b"", b"\r\n"])
async def test_a_connection_that_asks_for_nothing_is_closed(first: bytes) -> None:
    async with serve(App(), header_timeout_s=0.2) as connect:
        peer = await connect()
        await peer.say(first)
        assert await peer.closed()


async def test_empty_lines_do_not_keep_a_connection_open_after_an_answer() -> None:
    async with serve(App(), header_timeout_s=0.2) as connect:
        peer = await connect()
        await peer.say(GET + b"\r\n")
        await peer.answer()
        await peer.say(b"\r\n")
        assert await peer.closed()


async def test_a_connection_is_used_again_after_a_body_that_came_behind_its_answer() -> None:
    async with serve(App()) as connect:
        peer = await connect()
        await peer.say(POST + b"content-length: 4\r\n\r\n")
        assert (await peer.answer())[0] == 200
        await peer.say(b"body" + GET + b"\r\n")
        assert (await peer.answer())[0] == 200


async def test_a_body_that_nobody_reads_does_not_keep_a_connection_open() -> None:
    async with serve(App()) as connect:
        peer = await connect()
        await peer.say(POST + b"content-length: 1000000\r\n\r\n")
        assert (await peer.answer())[0] == 200

        async def drip() -> None:
            while True:
                await peer.say(b"a")
                await asyncio.sleep(0.1)  # how slow this client is; nothing waits for it

        dripping = asyncio.create_task(drip())
        try:
            assert await peer.closed()
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)


async def test_connections_beyond_the_bound_are_503_and_far_beyond_it_closed() -> None:
    async with serve(App(), max_connections=2) as connect:
        held = [await connect() for _ in range(2)]
        for peer in held:
            await peer.say(GET + b"\r\n")
            assert (await peer.answer())[0] == 200
        third = await connect()
        await third.say(GET + b"\r\n")
        assert await third.refusal() == (503, "TOO_MANY_CONNECTIONS")
        idle = [await connect() for _ in range(2)]
        beyond = await connect()
        assert await beyond.closed()
        assert len(idle) == 2
        await held[0].say(GET + b"\r\n")
        assert (await held[0].answer())[0] == 200


async def test_every_pipelined_request_hears_that_its_client_left() -> None:
    app = App()
    app.hold = asyncio.Event()
    async with serve(app) as connect:
        peer = await connect()
        await peer.say(GET + b"\r\n" + GET + b"\r\n")
        await app.begun.wait()
        peer.writer.transport.abort()
        await asyncio.wait_for(app.hold.wait(), 20)
        assert app.went[0] == "/x"
