"""`pagewire trace`: what it asks a gateway for, and what it says when that goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pagewire.cli.__main__ import main
from tests.pagewire.cli.test_waterfall import TRACE


class Gateway(BaseHTTPRequestHandler):
    """Answers what the test has put there; notes what it was asked."""

    status = 200
    body = b"{}"
    location = ""
    asked: list[tuple[str, str | None]] = []  # noqa: RUF012 - of one test

    def do_GET(self) -> None:
        Gateway.asked.append((self.path, self.headers.get("authorization")))
        self.send_response(Gateway.status)
        if Gateway.location:
            self.send_header("location", Gateway.location)
        self.end_headers()
        self.wfile.write(Gateway.body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    Gateway.status, Gateway.body, Gateway.asked = 200, json.dumps(TRACE).encode(), []
    Gateway.location = ""
    server = HTTPServer(("127.0.0.1", 0), Gateway)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_id_is_quoted_and_the_key_is_sent(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "a/b c", "--url", url, "--api-key", "k=ey"]) == 0
    assert Gateway.asked == [("/v1/requests/a%2Fb%20c/trace", "Bearer k=ey")]
    assert "worker: prefill" in capsys.readouterr().out


def test_without_an_id_it_lists(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    Gateway.body = json.dumps({"recent": [TRACE], "slowest": []}).encode()
    assert main(["trace", "--url", url + "/", "--limit", "3"]) == 0
    assert Gateway.asked == [("/v1/requests?limit=3", None)]
    assert "abc" in capsys.readouterr().out


def test_json_is_what_the_gateway_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "abc", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == TRACE


@pytest.mark.parametrize(
    ("status", "body", "word"),
    [
        (404, {"error": {"message": "no trace of request `x` is kept"}}, "no trace of request"),
        (401, {"error": {"message": "Incorrect API key provided"}}, "--api-key"),
        (404, "<html>", "has no traces (HTTP 404)"),
        (200, "<html>", "--url"),
        (200, [], "is no pagewire gateway"),
    ],
)
def test_errors_say_what_to_change(
    url: str, capsys: pytest.CaptureFixture[str], status: int, body: object, word: str
) -> None:
    Gateway.status = status
    Gateway.body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    assert main(["trace", "x", "--url", url]) == 1
    error = capsys.readouterr().err
    assert word in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_told_and_takes_no_key_along(
    url: str, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """Whoever answers for a host could else have the key sent anywhere."""
    elsewhere = url.replace("127.0.0.1", "localhost") + "/stolen\x1b[2J"
    Gateway.status, Gateway.location = code, elsewhere
    assert main(["trace", "x", "--url", url, "--api-key", "secret"]) == 1
    assert Gateway.asked == [("/v1/requests/x/trace", "Bearer secret")]
    error = capsys.readouterr().err
    assert "redirects to http://localhost" in error and "--url" in error
    assert "\x1b" not in error and len(error.splitlines()) == 1


def test_a_proxy_of_the_environment_gets_no_key(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert main(["trace", "x", "--url", url, "--api-key", "secret"]) == 0
    assert "worker: prefill" in capsys.readouterr().out


def test_an_error_of_the_gateway_cannot_drive_the_terminal(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Gateway.status = 404
    Gateway.body = json.dumps({"error": {"message": "no\x1b]0;x\x07 trace\nof it\x9b2J"}}).encode()
    assert main(["trace", "x", "--url", url]) == 1
    assert capsys.readouterr().err == "error: no ]0;x  trace of it 2J\n"


def test_nobody_there_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--url", "http://127.0.0.1:1"]) == 1
    assert "no gateway answers at http://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--width", "10"], ["--limit", "0"], ["--url", "localhost"], ["x", "--slowest"]],
)
def test_flags_that_cannot_be_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", *flags]) == 2
    assert "error:" in capsys.readouterr().err
