"""JSON logs on stderr, one object a line, that never make an event loop wait.

A line is rendered where it is logged and written by a thread behind a bounded queue: when stderr
is slower than the logs, lines are dropped and counted. Levels can change while the process runs.
`request_id`, `trace_id` and `client` come from `pagewire.kit.context`. Before `configure_logging`
(in tests, in libraries) records simply go to the standard library's handlers.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Literal, TextIO, cast, get_args

from pagewire.kit import context
from pagewire.kit.hidden_module import hidden_module
from pagewire.kit.log_writer import QueueWriter

# structlog imports rich where it finds it, for tracebacks in colour. Logs here are JSON, and rich
# would be a sixth of what a service's start takes.
with hidden_module("rich"):
    import structlog
    from structlog.typing import EventDict, Processor, WrappedLogger

LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[str, ...] = get_args(LogLevel)

_MAX_TEXT_CHARS = 4000
_MAX_TRACEBACK_CHARS = 16_000
_QUIET_LIBRARIES = ("grpc", "asyncio", "httpx", "httpcore", "urllib3", "filelock")


class Logger(structlog.stdlib.BoundLogger):
    """structlog's logger that looks at the level before it does anything else."""

    def debug(self, event: str | None = None, *args: Any, **kw: Any) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._proxy_to_logger("debug", event, *args, **kw)

    def info(self, event: str | None = None, *args: Any, **kw: Any) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._proxy_to_logger("info", event, *args, **kw)


def get_logger(name: str) -> Logger:
    """Return a logger; call it as `log.info("event_name", key=value)`."""
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=Logger,
        cache_logger_on_first_use=True,
    )
    return cast(Logger, logger)


def configure_logging(service: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of the process to `stream` (stderr) as JSON; call it once, first of all.

    Args:
        service: Stands in every line.
        level: One of `LEVELS`; the root's level.
        stream: For tests.
    """
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, QueueWriter)]:
        root.removeHandler(handler)
        handler.close()
    writer = QueueWriter(stream or sys.stderr)
    writer.setFormatter(_JsonFormatter(service))
    root.addHandler(writer)
    set_level(level)
    for library in _QUIET_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)


def set_level(level: str, logger: str = "") -> str:
    """Set the level of one logger and those below it ("" is all) and return the one before.

    Raises:
        ValueError: With (name, value, rule) if `level` is none of `LEVELS`.
    """
    name = level.lower()
    if name not in LEVELS:
        raise ValueError("level", level, f"must be one of {', '.join(LEVELS)}")
    target = logging.getLogger(logger or None)
    previous = logging.getLevelName(target.getEffectiveLevel()).lower()
    target.setLevel(name.upper())
    return str(previous)


def flush_logs() -> None:
    """Wait, at most two seconds, until what was logged is written."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class _JsonFormatter(structlog.stdlib.ProcessorFormatter):
    """Renders records as JSON."""

    def __init__(self, service: str) -> None:
        self._in_order = _in_order(service)
        self._encode = json.JSONEncoder(default=_printable, ensure_ascii=False).encode
        super().__init__(
            foreign_pre_chain=_shared_processors(),
            processors=[self.remove_processors_meta, self._render],
        )

    def format(self, record: logging.LogRecord) -> str:
        """Render a record; one of our loggers has been through its processors.

        structlog copies the record for other handlers and would give it to `logging` to format
        again, which takes longer than the rest.
        """
        if isinstance(record.msg, dict) and hasattr(record, "_name"):
            return self._render(None, "", dict(record.msg))
        return super().format(record)

    def _render(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        return self._encode(self._in_order(logger, method, _bound_text(logger, method, event)))


def _shared_processors() -> list[Processor]:
    return [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_ids,
        structlog.processors.format_exc_info,
    ]


def _add_ids(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the ids of the current task; explicit ones in the event win."""
    if (request_id := context.request_id()) is not None:
        event.setdefault("request_id", request_id)
    if (trace_id := context.trace_id()) is not None:
        event.setdefault("trace_id", trace_id)
    if (client := context.client()) is not None:
        event.setdefault("client", client)
    return event


def _in_order(service: str) -> Processor:
    """Put first what people read first."""

    def order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        head = {key: event.pop(key, "") for key in ("timestamp", "level", "event", "logger")}
        return {**head, "service": service, **event}

    return order


def _bound_text(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Cut long texts: a prompt of a megabyte in an error must not become a line of one."""
    for key, value in event.items():
        limit = _MAX_TRACEBACK_CHARS if key == "exception" else _MAX_TEXT_CHARS
        if isinstance(value, str) and len(value) > limit:
            # The end of a traceback says more than its beginning.
            event[key] = "…" + value[-limit:] if key == "exception" else value[:limit] + "…"
    return event


def _printable(value: object) -> str:
    return repr(value)[:_MAX_TEXT_CHARS]
