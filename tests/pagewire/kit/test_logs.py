"""JSON logs: fields, levels at run time, and what a stuck stream costs."""

import contextvars
import io
import json
import logging
import threading

import pytest

from pagewire.kit import context
from pagewire.kit.log_writer import QueueWriter
from pagewire.kit.logs import configure_logging, flush_logs, get_logger, set_level


@pytest.fixture
def stream():
    """A configured process; its root logger is as before afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    stream = io.StringIO()
    configure_logging("test", "info", stream)
    yield stream
    for handler in [h for h in root.handlers if h not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict]:
    flush_logs()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_event_fields_service_and_ids(stream):
    with context.bind(request_id="r1", traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"):
        get_logger("pagewire.a").info("started", num_things=3)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "started",
        "num_things": 3,
        "level": "info",
        "logger": "pagewire.a",
        "service": "test",
        "request_id": "r1",
        "trace_id": "ab" * 16,
    }


def test_a_line_names_the_client_once_it_is_known(stream):
    def work() -> None:
        context.set_client("team-a")
        get_logger("pagewire.a").info("started")

    contextvars.copy_context().run(work)
    get_logger("pagewire.a").info("other")
    assert [line.get("client") for line in lines(stream)] == ["team-a", None]


def test_logs_of_libraries_have_the_same_form(stream):
    logging.getLogger("library").warning("it %s", "works")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("it works", "warning", "library")


def test_an_exception_is_one_line_with_its_traceback(stream):
    try:
        raise LookupError("no")
    except LookupError:
        get_logger("pagewire.a").exception("failed")
    (line,) = lines(stream)
    assert "LookupError: no" in line["exception"]


def test_levels_change_while_the_process_runs(stream):
    log = get_logger("pagewire.level")
    log.debug("unseen")
    assert set_level("debug") == "info"
    log.debug("seen")
    assert set_level("error", "pagewire.level") == "debug"
    log.info("unseen")
    assert [line["event"] for line in lines(stream)] == ["seen"]
    logging.getLogger("pagewire.level").setLevel(logging.NOTSET)


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="must be one of debug"):
        set_level("loud")


def test_long_texts_are_cut_and_odd_values_are_shown(stream):
    get_logger("pagewire.a").info("e", text="x" * 100_000, value={1, 2}, raw=b"\xff")
    (line,) = lines(stream)
    assert len(line["text"]) < 5000
    assert line["value"] == "{1, 2}"


def test_quiet_libraries_say_nothing_below_warning(stream):
    logging.getLogger("grpc._cython").info("chatter")
    assert lines(stream) == []


class StuckStream(io.StringIO):
    """A stream whose first write waits for `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()
        self.num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        self.entered.set()
        self.release.wait()
        return super().write(text)


def test_a_stuck_stream_costs_lines_and_no_time():
    stream = StuckStream()
    writer = QueueWriter(stream, capacity=2)

    def emit(text: str) -> None:
        writer.emit(logging.LogRecord("a", logging.INFO, "", 0, text, None, None))

    emit("first")
    stream.entered.wait()
    for number in range(5):
        emit(f"line {number}")
    assert writer.num_dropped == 3
    stream.release.set()
    writer.close()
    assert stream.getvalue().splitlines() == [
        "first",
        '{"event": "log_lines_dropped", "num_dropped": 3}',
        "line 0",
        "line 1",
    ]


def test_lines_that_wait_are_written_in_one_go_and_in_order():
    stream = StuckStream()
    writer = QueueWriter(stream)
    for number in range(500):
        writer.emit(logging.LogRecord("a", logging.INFO, "", 0, f"line {number}", None, None))
        if number == 0:
            stream.entered.wait()
    stream.release.set()
    writer.close()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(500)]
    assert stream.num_writes == 3  # the first line, then 256 and 243


def test_a_closed_stream_does_not_end_the_writer():
    stream = io.StringIO()
    stream.close()
    writer = QueueWriter(stream)
    writer.emit(logging.LogRecord("a", logging.INFO, "", 0, "x", None, None))
    writer.flush()
    assert writer.num_dropped == 1
    writer.close()
