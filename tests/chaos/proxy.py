"""A TCP proxy before one service, which can disturb what goes through it.

It carries bytes and knows nothing of them. Runs in the test's event loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

from pagewire.kit.tasks import TaskOwner

_CHUNK_BYTES = 64 * 1024


class LinkProxy:
    """Listens on a loopback port and connects each caller to a Unix socket.

    Attributes:
        delay_s: How long every piece of bytes is held, each way.
        blackhole: Connections stay open and carry nothing; new ones are taken and carry nothing.
    """

    def __init__(self, path: str) -> None:
        self.delay_s = 0.0
        self._path = path
        self._passing = asyncio.Event()
        self._passing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks = TaskOwner()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server: asyncio.Server | None = None

    @property
    def target(self) -> str:
        """Address to give to the caller."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def blackhole(self) -> bool:
        return not self._passing.is_set()

    @blackhole.setter
    def blackhole(self, is_on: bool) -> None:
        if is_on:
            self._passing.clear()
        else:
            self._passing.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    def reset(self) -> int:
        """Reset all connections, on both sides; return how many there were."""
        writers, self._writers = self._writers, set()
        for writer in writers:
            _reset(writer)
        return len(writers)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.reset()
        self._passing.set()
        await self._tasks.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            _reset(writer)
            return
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.spawn(self._carry(source, sink), name="proxy")

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_CHUNK_BYTES):
                await asyncio.sleep(self.delay_s)
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            _reset(sink)
        finally:
            self._writers.discard(sink)
            with suppress(OSError):
                sink.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST where the socket has one."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_INET:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
