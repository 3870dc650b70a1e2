"""An HTTP server that answers with given bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class ScriptedServer:
    """Answers each request with the next script, the last one again and again.

    A script is what is written, piece by piece; the connection is closed behind it.
    """

    scripts: Sequence[Sequence[bytes]]
    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    num_connections: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.num_connections, len(self.scripts) - 1)]
        self.num_connections += 1
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length) or b"null"))
        with contextlib.suppress(ConnectionError):
            for piece in script:
                writer.write(piece)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def serving(*scripts: Sequence[bytes]) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(scripts)
    server = await asyncio.start_server(scripted.answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        scripted.url = f"http://127.0.0.1:{port}"
        yield scripted


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return chunked(b"data: " + data + b"\n\n")


def text(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text}]})


def usage(prompt: int, completion: int, cached: int = 0) -> bytes:
    details = {"cached_tokens": cached}
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": {**tokens, "prompt_tokens_details": details}})


DONE = event(b"[DONE]") + b"0\r\n\r\n"
MODELS_BODY = json.dumps({"data": [{"id": "tiny"}, {"id": "other"}]}).encode()
MODELS = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(MODELS_BODY), MODELS_BODY]
