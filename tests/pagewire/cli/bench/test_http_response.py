"""HTTP responses in any pieces, and what is none."""

from __future__ import annotations

import pytest

from pagewire.cli.bench.http_response import HttpFormatError, HttpResponse

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n,\r\nc\r\n wide\r\nworld\r\n0\r\n\r\n"
)
PLAIN = b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone"
CASES = [(CHUNKED, 200, b"hello, wide\r\nworld"), (PLAIN, 404, b"none")]


def read(data: bytes, size: int) -> tuple[HttpResponse, bytes]:
    response = HttpResponse()
    pieces = [response.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return response, b"".join(pieces)


@pytest.mark.parametrize(("data", "status", "body"), CASES)
def test_pieces_of_any_size_give_the_same(data: bytes, status: int, body: bytes) -> None:
    for size in range(1, len(data) + 1):
        response, found = read(data, size)
        assert (response.status, found, response.is_complete) == (status, body, True), size
        response.end()


def test_a_chunk_is_passed_on_before_it_is_whole() -> None:
    response, body = read(CHUNKED[: CHUNKED.index(b"llo")], 1000)
    assert body == b"he"
    assert not response.is_complete


def test_without_a_length_the_end_of_the_connection_is_the_end() -> None:
    response, body = read(b"HTTP/1.0 200 OK\r\n\r\nall of it", 3)
    assert (body, response.is_complete) == (b"all of it", False)
    response.end()
    assert response.is_complete


@pytest.mark.parametrize("data", [b"", CHUNKED[:20], CHUNKED[:-3], PLAIN[:-1]])
def test_a_response_that_is_cut_off_is_an_error(data: bytes) -> None:
    response = HttpResponse()
    response.feed(data)
    with pytest.raises(HttpFormatError, match="ended before"):
        response.end()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 ok\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        CHUNKED.replace(b"\r\n5\r\n", b"\r\nfive\r\n"),
        CHUNKED.replace(b"\r\n5\r\n", b"\r\n-5\r\n"),
        b"x" * 70_000,
        CHUNKED.replace(b"\r\n5\r\n", b"\r\n" + b"5" * 2000),
    ],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    with pytest.raises(HttpFormatError):
        HttpResponse().feed(data)
