"""Tests of what the terminal shows."""

from __future__ import annotations

import io
import json

from pagewire.cli.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(event: str, level: str = "info", **fields: object) -> str:
    return json.dumps({"event": event, "level": level, "service": "x", **fields})


def test_only_warnings_and_worse_are_shown():
    stream = io.StringIO()
    console = Console(stream)
    console.release()
    for level in ("debug", "info", "warning", "error"):
        console.line("scheduler", record(f"event_{level}", level, request_id="r1"))
    assert stream.getvalue() == (
        "scheduler: warning: event_warning request_id=r1\n"
        "scheduler: error: event_error request_id=r1\n"
    )


def test_text_that_is_no_log_line_is_shown():
    stream = io.StringIO()
    Console(stream).line("worker", "{Segmentation fault")
    Console(stream).line("worker", '{"json": "but no log line"}')
    assert stream.getvalue().startswith("worker: {Segmentation fault\nworker: {")


def test_a_traceback_is_its_last_line_unless_all_is_shown():
    line = record("crash", "error", exception="Traceback ...\n  File x\nValueError: no")
    short, long = io.StringIO(), io.StringIO()
    console = Console(short)
    console.line("worker", line)
    console.release()
    Console(long, verbose=True).line("worker", line)
    assert short.getvalue() == "worker: error: crash (ValueError: no)\n"
    assert "  File x" in long.getvalue()


def test_progress_on_a_terminal_changes_in_place_and_goes_away():
    stream = Terminal()
    console = Console(stream)
    console.line("scheduler", record("worker_progress", stage="load_weights", done=1, total=4))
    console.line("scheduler", record("worker_progress", stage="load_weights", done=4, total=4))
    console.clear_progress()
    clear = "\r\x1b[K"
    assert stream.getvalue() == (
        f"worker: load weights 25 % ...{clear}worker: load weights 100 % ...{clear}"
    )


def test_progress_in_a_file_is_one_line_a_stage():
    stream = io.StringIO()
    console = Console(stream)
    for done in (0, 1, 2):
        console.line("scheduler", record("worker_progress", stage="load", done=done, total=2))
    console.line("scheduler", record("kv_cache_sized", num_blocks=8, block_size=16))
    assert stream.getvalue() == (
        "worker: load ...\nworker: allocate KV cache, 8 blocks of 16 tokens ...\n"
    )


def test_a_child_cannot_move_the_cursor():
    stream = io.StringIO()
    Console(stream).line("worker", "a\x1b[2Jb")
    assert stream.getvalue() == "worker: a [2Jb\n"


def test_log_files_that_cannot_be_written_do_not_stop_the_stack(tmp_path):
    stream = io.StringIO()
    console = Console(stream, log_dir=tmp_path / "logs")
    console.release()
    (tmp_path / "logs" / "worker.log").mkdir()
    for _ in range(2):
        console.line("worker", record("event", "warning"))
    assert stream.getvalue().count("no more log files") == 1
    assert stream.getvalue().count("worker: warning: event") == 2


def test_warnings_while_the_stack_starts_are_shown_once_it_is_ready():
    stream = io.StringIO()
    console = Console(stream)
    console.line("worker", record("slow", "warning"))
    assert stream.getvalue() == ""
    console.release()
    assert stream.getvalue() == "worker: warning: slow\n"


def test_why_the_stack_gave_up_stands_alone():
    stream = io.StringIO()
    console = Console(stream)
    console.line("worker", record("model_load_failed", "error"))
    console.gave_up("no such model")
    assert stream.getvalue() == "error: no such model\n"


def test_a_start_that_takes_long_shows_its_warnings():
    stream = io.StringIO()
    times = iter([0.0, 9.0, 11.0, 11.0])
    console = Console(stream, clock=lambda: next(times))
    console.line("worker", record("first", "warning"))
    assert stream.getvalue() == ""
    console.line("worker", record("second", "warning"))
    assert stream.getvalue() == "worker: warning: first\nworker: warning: second\n"


def test_a_death_shows_what_came_before_it():
    stream = io.StringIO()
    console = Console(stream)
    console.line("worker", record("out_of_memory", "error"))
    console.restarting("worker", "signal SIGKILL", 0.2)
    assert stream.getvalue().splitlines() == [
        "worker: error: out_of_memory",
        "pagewire: the worker died (signal SIGKILL); starting it again in 0.2 s",
    ]


def test_one_of_several_children_goes_by_its_name():
    stream = io.StringIO()
    Console(stream).restarting("worker-1", "exit code 3", 1.0)
    assert stream.getvalue().startswith("pagewire: worker-1 died (exit code 3); starting it")


def test_no_text_of_a_child_can_drive_the_terminal():
    stream = io.StringIO()
    console = Console(stream, verbose=True)
    console.line("worker", "Fatal\x1b[2J")
    console.line("worker", record("x\x1b", "error", path="\x9b", exception="T\x1b[2J\n  File x"))
    console.restarting("worker", "exit\x1b[2J", 1.0)
    console.gave_up("no model \x1b]0;owned\x07\nat all")
    assert "\x1b" not in stream.getvalue() and "\x9b" not in stream.getvalue()
    assert stream.getvalue().endswith("error: no model  ]0;owned  at all\n")
    assert "\n  File x\n" in stream.getvalue()
