"""A logging handler that writes from its own thread, behind a bounded queue.

The thread that logs renders the line and never waits for the stream. It knows nothing of
formats or levels; `pagewire.kit.logs` configures it.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TextIO

_CAPACITY_LINES = 8192
_MAX_LINES_A_WRITE = 256
_DRAIN_TIMEOUT_S = 2.0


class QueueWriter(logging.Handler):
    """Writes lines in order, those that wait in one go; counts and drops them while it is full.

    Thread-safe. `flush` and `close` wait a bounded time, so a stuck stream cannot hold up an exit.
    """

    def __init__(self, stream: TextIO, capacity: int = _CAPACITY_LINES) -> None:
        super().__init__()
        self._stream = stream
        # Of the queues the cheap one; what logs holds the handler's lock, so the bound is kept.
        self._lines: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self._capacity = capacity
        self.num_dropped = 0
        self._num_reported = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a record that cannot be rendered must not stop its caller
            self.handleError(record)
            return
        if self._lines.qsize() >= self._capacity:
            self.num_dropped += 1
        else:
            self._lines.put(line)

    def flush(self) -> None:
        """Wait until the lines logged so far are written, or two seconds have passed."""
        if self._closed or not self._thread.is_alive():
            return
        reached = threading.Event()
        self._lines.put(reached)
        reached.wait(_DRAIN_TIMEOUT_S)

    def close(self) -> None:
        if not self._closed:
            self.flush()
            self._closed = True
            self._lines.put(None)
            self._thread.join(_DRAIN_TIMEOUT_S)
        super().close()

    def _run(self) -> None:
        lines: list[str] = []
        while True:
            item = self._lines.get()
            if isinstance(item, str):
                lines.append(item)
                if not self._lines.empty() and len(lines) < _MAX_LINES_A_WRITE:
                    continue
            if lines:
                self._write(lines)
                lines = []
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()

    def _write(self, lines: list[str]) -> None:
        report = ""
        if num_new := self.num_dropped - self._num_reported:
            self._num_reported += num_new
            report = f'{{"event": "log_lines_dropped", "num_dropped": {num_new}}}\n'
        try:
            self._stream.write(report + "\n".join(lines) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # stderr is closed or its reader is gone: there is no other place to tell it.
            self.num_dropped += len(lines)
