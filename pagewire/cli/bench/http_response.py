"""HTTP/1.1 responses from bytes, as little of it as a load generator needs; sans-IO.

A load generator shares the machine with what it measures, so it reads streams with little work a
message: no objects for chunks, headers or lines that nobody asks for.
"""

from __future__ import annotations

_MAX_HEAD_BYTES = 64 * 1024
_MAX_LINE_BYTES = 1024


class HttpFormatError(Exception):
    """The bytes are no HTTP/1.1 response."""


class HttpResponse:
    """One response as it arrives: `feed` it, and `end` it when the connection has ended."""

    def __init__(self) -> None:
        self.status = 0
        """0 until the head is there."""
        self.headers: dict[bytes, bytes] = {}
        """By lower-case name; of several of one name the last."""
        self.is_complete = False
        self._buffer = b""
        self._is_chunked = False
        self._num_left: int | None = None
        """Bytes of the body, or of the chunk with its line end; None: unknown."""

    def feed(self, data: bytes) -> bytes:
        """Take in bytes and return what they add to the body.

        Raises:
            HttpFormatError: They are no response.
        """
        if not self.status:
            data = self._take_head(self._buffer + data)
            if not self.status:
                return b""
        if self.is_complete:
            return b""
        return self._unchunk(data) if self._is_chunked else self._take_plain(data)

    def end(self) -> None:
        """Note that nothing more comes.

        Raises:
            HttpFormatError: The response is not complete.
        """
        if self.status and not self._is_chunked and self._num_left is None:
            self.is_complete = True
        if not self.is_complete:
            raise HttpFormatError("the connection ended before the response did")

    def _take_head(self, data: bytes) -> bytes:
        """Read the head if it is whole, and return what follows it."""
        head, separator, rest = data.partition(b"\r\n\r\n")
        if not separator:
            if len(data) > _MAX_HEAD_BYTES:
                raise HttpFormatError("the head of the response has no end")
            self._buffer = data
            return b""
        self._buffer = b""
        first, *lines = head.split(b"\r\n")
        parts = first.split(b" ", 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            raise HttpFormatError("the server does not speak HTTP/1.1")
        self.status = int(parts[1])
        for line in lines:
            name, _, value = line.partition(b":")
            self.headers[name.strip().lower()] = value.strip()
        self._is_chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
        length = self.headers.get(b"content-length")
        if not self._is_chunked and length is not None:
            if not length.isdigit():
                raise HttpFormatError("content-length is no number")
            self._num_left = int(length)
            self.is_complete = self._num_left == 0
        return rest

    def _take_plain(self, data: bytes) -> bytes:
        if self._num_left is None:
            return data
        data = data[: self._num_left]
        self._num_left -= len(data)
        self.is_complete = self._num_left == 0
        return data

    def _unchunk(self, data: bytes) -> bytes:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        pieces, start = [], 0
        while not self.is_complete:
            if self._num_left is None:
                line_end = data.find(b"\r\n", start)
                if line_end < 0:
                    break
                size = _chunk_size(data[start:line_end])
                start = line_end + 2
                self.is_complete = size == 0  # trailers are nobody's business
                self._num_left = size + 2
            if len(data) - start < self._num_left:
                # All but the line end, which may be cut in two, is passed on at once.
                stop = min(len(data), start + max(0, self._num_left - 2))
                pieces.append(data[start:stop])
                self._num_left -= stop - start
                start = stop
                break
            pieces.append(data[start : start + max(0, self._num_left - 2)])
            start += self._num_left
            self._num_left = None
        if not self.is_complete:
            self._buffer = data[start:]
            if self._num_left is None and len(self._buffer) > _MAX_LINE_BYTES:
                raise HttpFormatError("the size of a chunk has no end")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _chunk_size(line: bytes) -> int:
    try:
        size = int(line.partition(b";")[0].strip(), 16)
    except ValueError:
        size = -1
    if size < 0:
        raise HttpFormatError("the size of a chunk is no number")
    return size
