"""Server-sent events from the bytes of a body; sans-IO."""

from __future__ import annotations

MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventTooLargeError(Exception):
    """An event has no end."""


class EventReader:
    """The data of each event, in order. Comments and other fields are passed over."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, body: bytes) -> list[bytes]:
        """Take in a piece of the body and return the data of the events that it completes.

        Raises:
            EventTooLargeError: An event is larger than `MAX_EVENT_BYTES`.
        """
        if self._buffer:
            body = self._buffer + body
        held = b""
        if b"\r" in body:
            # A line end at the very end may be half of one.
            if body.endswith(b"\r"):
                body, held = body[:-1], b"\r"
            body = body.replace(b"\r\n", b"\n")
        *blocks, rest = body.split(b"\n\n")
        self._buffer = rest + held
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise EventTooLargeError("the server sends an event without an end")
        return [data for block in blocks if (data := _data(block)) is not None]


def _data(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:] for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines) if lines else None
