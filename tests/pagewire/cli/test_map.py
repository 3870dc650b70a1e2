"""`pagewire map`: what it draws of an answer, and what it says when there is none."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pagewire.cli.__main__ import main
from pagewire.cli.map_figures import as_text
from pagewire.cli.map_view import Look, draw_map

PROCESS = {
    "cpu_cores": 0.25, "waiting_threads": None, "loop_lag_max_ms": 9, "loop_lag_mean_ms": 1.5,
    "rss_bytes": 64 << 20, "num_cpus": 2, "uptime_s": 9, "rpcs_per_s": 0,
}  # fmt: skip


def box(name: str, replica: str | None = None, **figures: Any) -> dict[str, Any]:
    return {
        "id": name,
        "kind": name.partition("-")[0],
        "replica": replica,
        "address": "127.0.0.1:1",
        "state": "ready",
        "version": "0.1.0",
        "figures": figures,
        "process": PROCESS,
        "history": [],
    }


def edge(source: str, target: str, rate: float | None) -> dict[str, Any]:
    return {"from": source, "to": target, "messages_per_s": rate, "round_trip_ms": 1.25}


def make_answer(num_replicas: int = 2, **diagnosis: Any) -> dict[str, Any]:
    told = {
        "verdict": "queue-bound",
        "box": "scheduler-0",
        "summary": "the batch is full",
        "why": {"waiting": 9},
        "try": ["--max-num-seqs 4", "more replicas"],
    }
    boxes = [
        box("gateway", live_requests=3, requests_per_s=None, unread_bytes=2048),
        box("tokenizer-0", calls_in_flight=0, call_ms=12.345),
    ]
    edges = [edge("clients", "gateway", 2.0), edge("gateway", "tokenizer-0", None)]
    for replica in map(str, range(num_replicas)):
        scheduler, worker = f"scheduler-{replica}", f"worker-{replica}.0"
        boxes.append(box(scheduler, replica, running=2, max_num_seqs=2, kv_usage=0.5))
        boxes.append(box(worker, replica, idle_share=0.25, forward_ms=1500))
        edges += [edge("gateway", scheduler, 19.5), edge(scheduler, worker, 19.5)]
    return {
        "object": "map",
        "created": 1_700_000_000.0,
        "window_s": 6.0,
        "diagnosis": told | diagnosis,
        "boxes": boxes,
        "edges": edges,
    }


@pytest.mark.parametrize("width", [40, 78, 80, 118, 200])
@pytest.mark.parametrize("num_replicas", [0, 1, 5])
def test_no_line_is_wider_than_the_terminal(width: int, num_replicas: int) -> None:
    answer = make_answer(num_replicas, summary="far too long " * 30)
    text = draw_map(answer, "http://127.0.0.1:8000", Look(width))
    assert max(map(len, text.splitlines())) <= width
    for name in [each["id"] for each in answer["boxes"]]:
        assert len(re.findall(rf"[─»] {re.escape(name)} ", text)) == 1


def test_replicas_stand_side_by_side_where_there_is_room() -> None:
    def line_of(text: str, name: str) -> int:
        return next(n for n, line in enumerate(text.splitlines()) if f" {name} " in line)

    wide, narrow = (draw_map(make_answer(), "", Look(width)) for width in (120, 60))
    assert line_of(wide, "scheduler-0") == line_of(wide, "scheduler-1")
    assert line_of(wide, "worker-0.0") == line_of(wide, "worker-1.0")
    assert line_of(narrow, "scheduler-0") < line_of(narrow, "scheduler-1")


def test_a_map_tells_what_limits_what_to_try_and_the_figures() -> None:
    text = draw_map(make_answer(), "http://h:1", Look(120))
    assert "queue-bound at scheduler-0: the batch is full" in text
    assert "try  --max-num-seqs 4\nor   more replicas" in text
    assert "» scheduler-0 ─" in text and "─ scheduler-1 ─" in text
    for figure in ("running 2 of 2", "KV 50%", "idle 25%", "forward 1.5 s", "19.5/s  1.2 ms"):
        assert figure in text
    assert "unread 2 KiB" in text and "mem 64 MiB" in text
    assert "new" not in text and "lacks" not in text, "what is not known is left out"


def test_colour_marks_what_is_not_well_and_nothing_else() -> None:
    strong = "\x1b[1;33m"
    assert strong in draw_map(make_answer(), "", Look(120, has_colour=True))
    quiet = make_answer(verdict="healthy", box=None)
    assert strong not in draw_map(quiet, "", Look(120, has_colour=True))
    assert "\x1b" not in draw_map(make_answer(), "", Look(120))


def test_a_name_cannot_change_the_terminal() -> None:
    answer = make_answer(1)
    answer["boxes"][2] = box("scheduler-\x1b[2J", "0")
    assert "\x1b" not in draw_map(answer, "http://\x1b]0;x", Look(80))


@pytest.mark.parametrize("control", ["\x1b[2J", "\n", "\x9b", "\u202e"])
def test_no_text_of_a_map_can_drive_the_terminal(control: str) -> None:
    def spoilt(value: Any) -> Any:
        if isinstance(value, str):
            return value + control
        if isinstance(value, dict):
            return {name: spoilt(each) for name, each in value.items()}
        return [spoilt(item) for item in value] if isinstance(value, list) else value

    text = draw_map(spoilt(make_answer()), "http://h:1", Look(120))
    assert text.replace("\n", "").isprintable()
    assert "scheduler-0" in text and "the batch is full" in text


def test_figures_have_the_unit_that_their_name_says() -> None:
    assert as_text("x_bytes", 5 << 30) == "5.0 GiB"
    assert as_text("x_ms", 0.25) == "0.25 ms"
    assert as_text("x_per_s", 12345.6) == "12,346/s"
    assert as_text("x_share", 0.999) == "100%"
    assert as_text("x", None) == ""


class Gateway(BaseHTTPRequestHandler):
    """Answers as one that wants the key `secret`."""

    def do_GET(self) -> None:
        if self.path != "/v1/map":
            self.send_error(404)
        elif self.headers["authorization"] != "Bearer secret":
            self._send(401, {"error": {"message": "a key is needed"}})
        else:
            self._send(200, make_answer())

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_once_prints_one_frame(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["map", f"--url={url}", "--api-key=secret", "--once"]
    assert main([*arguments, "--width=80"]) == 0
    assert "queue-bound at scheduler-0" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == make_answer()


def test_else_it_goes_on_until_it_is_interrupted(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[float]()

    def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        if len(slept) == 2:
            monkeypatch.setattr("pagewire.cli.map.get_object", gone)
        if len(slept) == 3:
            raise KeyboardInterrupt

    def gone(*_: Any, **__: Any) -> Any:
        from pagewire.kit.errors import ServiceUnavailableError

        raise ServiceUnavailableError("no gateway answers")

    monkeypatch.setattr("pagewire.cli.map.time.sleep", sleep)
    arguments = ["map", f"--url={url}", "--api-key=secret", "--json", "--interval=0.5"]
    assert main(arguments) == 130
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("object") for line in lines] == ["map", "map", None]
    assert lines[-1] == {"error": "no gateway answers"}, "a gateway may be started anew"
    assert slept == [0.5] * 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "a key is needed (--api-key)"),
        (["--url=http://127.0.0.1:1"], "no gateway answers at http://127.0.0.1:1"),
        (["--url=nonsense"], "--url"),
        (["--interval=0"], "--interval"),
        (["--width=3"], "--width"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    url: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["map", f"--url={url}", "--once", *flags])
    except SystemExit as exc:
        code = int(exc.code or 0)
    assert code != 0
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def test_a_server_of_another_kind_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", f"--url={url}/elsewhere", "--once"]) == 1
    assert "has no map (HTTP 404)" in capsys.readouterr().err
