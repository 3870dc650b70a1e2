"""Events of a stream in any pieces."""

from __future__ import annotations

import pytest

from pagewire.cli.bench import event_reader
from pagewire.cli.bench.event_reader import EventReader, EventTooLargeError

STREAM = (
    b'data: {"a":1}\n\n: a comment\n\ndata:no space\n\nevent: x\nid: 7\ndata: two\ndata: lines\n\n'
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a":1}', b"no space", b"two\nlines", b"[DONE]"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_pieces_of_any_size_give_the_same_events(line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    for size in range(1, len(stream) + 1):
        reader = EventReader()
        events = [
            event
            for at in range(0, len(stream), size)
            for event in reader.feed(stream[at : at + size])
        ]
        assert events == EVENTS, size


def test_an_event_comes_with_the_piece_that_ends_it() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\ndata: b") == [b"a"]


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "MAX_EVENT_BYTES", 100)
    reader = EventReader()
    with pytest.raises(EventTooLargeError):
        for _ in range(20):
            reader.feed(b"data: 1234")
