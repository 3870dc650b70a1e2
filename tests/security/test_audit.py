"""The audit of pinned versions, against a source of our own and against none."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def main() -> Callable[[list[str]], int]:
    """The script's entry."""
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run: Callable[[list[str]], int] = module.main
    return run


@pytest.fixture
def source() -> Iterator[str]:
    """A source that knows one weakness, of `bad` 1.0."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            results = [self._result(query) for query in json.loads(content)["queries"]]
            body = json.dumps({"results": results}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _result(self, query: dict[str, Any]) -> dict[str, Any]:
            assert query["package"]["ecosystem"] == "PyPI"
            is_bad = (query["package"]["name"], query["version"]) == ("bad-one", "1.0")
            return {"vulns": [{"id": "PYSEC-1"}]} if is_bad else {}

        def log_message(self, *_: object) -> None:
            """Tests say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_known_weakness_is_named_and_fails(main, source, tmp_path, capsys):
    pins = tmp_path / "pins.txt"
    pins.write_text("# comment\ngood==2.0\nBad_One==1.0  # pinned\n")
    assert main(["--source", source, str(pins)]) == 1
    assert "bad-one 1.0: PYSEC-1\naudit: 2 packages, 1 known weaknesses" in capsys.readouterr().out


def test_our_own_pins_are_all_asked_for(main, source, capsys):
    assert main(["--source", source]) == 0
    number = int(capsys.readouterr().out.split()[1])
    assert number > 80


def test_a_source_that_cannot_be_reached_is_told_and_holds_nothing_up(main, capsys):
    assert main(["--source", "http://127.0.0.1:1"]) == 0
    assert "NOT DONE" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", b""],
    ids=["no HTTP", "half an answer", "nothing"],
)
def test_a_source_that_is_none_is_told_and_holds_nothing_up(main, capsys, answer):
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert main(["--source", f"http://127.0.0.1:{server.server_address[1]}"]) == 0
        thread.join()
    assert "NOT DONE" in capsys.readouterr().out
