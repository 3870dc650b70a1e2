"""A trace as text: bars at their places, within the width."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.cli.waterfall import draw_list, draw_trace

TRACE: dict[str, Any] = {
    "id": "abc",
    "route": "/v1/chat/completions",
    "status": 200,
    "model": "m",
    "prompt_tokens": 200,
    "cached_tokens": 16,
    "output_tokens": 21,
    "finish_reasons": {"stop": 2},
    "error": None,
    "replicas": ["10.0.0.1:50052"],
    "preemptions": 0,
    "recoveries": 2,
    "duration_s": 1.0,
    "time_to_first_token_s": 0.5,
    "parts": {"parse": 0.0005, "forward": 0.8995, "recovery": 0.1},
    "boxes": {"parse": "gateway", "forward": "worker", "recovery": "scheduler"},
    "spans": [{"part": "parse", "start_s": 0.0, "duration_s": 0.0005}],
    "outputs": [
        {
            "index": 0,
            "is_last": True,
            "start_s": 0.0,
            "duration_s": 1.0,
            "segments": [
                {
                    "kind": "prefill",
                    "start_s": 0.0005,
                    "duration_s": 0.4995,
                    "steps": 2,
                    "tokens": 184,
                    "parts": {"forward": 0.4995},
                },
                {
                    "kind": "decode",
                    "start_s": 0.5,
                    "duration_s": 0.4,
                    "steps": 20,
                    "tokens": 21,
                    "parts": {"forward": 0.4},
                },
                {
                    "kind": "recovery",
                    "start_s": 0.9,
                    "duration_s": 0.1,
                    "steps": 0,
                    "tokens": 0,
                    "parts": {"recovery": 0.1},
                },
            ],
        }
    ],
}

BOXES = frozenset(TRACE["boxes"])


def _line(text: str, word: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(word))
    return line


def test_bars_stand_where_their_time_was() -> None:
    text = draw_trace(TRACE, 100)
    prefill, decode = _line(text, "worker: prefill"), _line(text, "worker: decode")
    assert "184 tokens in 2 steps" in prefill
    assert "20 steps, 20.0 ms each" in decode
    assert prefill.rindex("█") + 1 == decode.index("█")
    assert abs(prefill.count("█") - decode.count("█") * 5 / 4) <= 1
    assert _line(text, "scheduler: recovery").rindex("█") > decode.rindex("█")
    assert "▏" in _line(text, "gateway: parse")


def test_it_says_what_the_request_was_and_what_its_parts_are_together() -> None:
    text = draw_trace(TRACE, 200)
    for word in ("abc", "stop x2", "2 recoveries", "on 10.0.0.1:50052", "first token after 500.0"):
        assert word in text
    assert _line(text, "forward").split() == ["forward", "899.5", "ms", "90", "%", "worker"]
    assert "100 %" in _line(text, "sum")


@pytest.mark.parametrize("width", [40, 61, 80, 200])
def test_no_line_is_wider_than_it_may_be(width: int) -> None:
    text = draw_trace(TRACE, width) + "\n" + draw_list([TRACE, TRACE], width)
    assert max(map(len, text.splitlines())) <= width
    assert "█" in text


def test_several_outputs_are_shown_below_each_other() -> None:
    other = {**TRACE["outputs"][0], "index": 1, "is_last": False, "duration_s": 0.5}
    text = draw_trace({**TRACE, "outputs": [TRACE["outputs"][0], other]}, 100)
    assert _line(text, "output 0").count("█") == pytest.approx(
        2 * _line(text, "output 1").count("█"), abs=1
    )


def test_a_request_that_never_ran_has_no_first_token() -> None:
    failed = {
        **TRACE,
        "error": "QUEUE_FULL",
        "status": 429,
        "time_to_first_token_s": None,
        "finish_reasons": {},
        "outputs": [],
        "duration_s": 0.0,
    }
    assert "failed: QUEUE_FULL" in draw_trace(failed, 100)
    assert draw_list([failed], 100).splitlines()[1].split()[-1] == "QUEUE_FULL"


@pytest.mark.parametrize("control", ["\x1b[2J", "\r", "\n", "\x07", "\x9b", "\u202e"])
def test_no_text_of_a_trace_can_drive_the_terminal(control: str) -> None:
    def spoilt(value: Any) -> Any:
        if isinstance(value, str):
            return value + control
        if isinstance(value, dict):
            return {
                name + control if name in BOXES else name: spoilt(v) for name, v in value.items()
            }
        return [spoilt(item) for item in value] if isinstance(value, list) else value

    trace = spoilt({**TRACE, "error": "QUEUE_FULL"})
    drawn = draw_trace(trace, 300)
    listed = draw_list([trace], 300)
    assert (drawn + listed).replace("\n", "").isprintable()
    assert len(listed.splitlines()) == 2
    assert len(drawn.splitlines()) == len(draw_trace({**TRACE, "error": "e"}, 300).splitlines())


def test_a_list_names_the_longest_part() -> None:
    header, row = draw_list([TRACE], 120).splitlines()
    assert header.split("  ")[0] == "id"
    assert "forward 90 %" in row
    assert "200+21" in row
    assert draw_list([], 80) == "no requests yet"
