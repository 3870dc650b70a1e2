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
_DRAIN_TIMEOUT_S = 2.0


class QueueWriter(logging.Handler):
    """Writes lines in order; counts and drops them while the queue is full.

    Thread-safe. `flush` and `close` wait a bounded time, so a stuck stream cannot hold up an exit.
    """

    def __init__(self, stream: TextIO, capacity: int = _CAPACITY_LINES) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | threading.Event | None] = queue.Queue(capacity)
        self.num_dropped = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a record that cannot be rendered must not stop its caller
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.num_dropped += 1

    def flush(self) -> None:
        """Wait until the lines logged so far are written, or two seconds have passed."""
        if self._closed or not self._thread.is_alive():
            return
        reached = threading.Event()
        try:
            self._lines.put(reached, timeout=_DRAIN_TIMEOUT_S)
        except queue.Full:
            return
        reached.wait(_DRAIN_TIMEOUT_S)

    def close(self) -> None:
        if not self._closed:
            self.flush()
            self._closed = True
            try:
                self._lines.put(None, timeout=_DRAIN_TIMEOUT_S)
                self._thread.join(_DRAIN_TIMEOUT_S)
            except queue.Full:
                self.num_dropped += self._lines.qsize()
        super().close()

    def _run(self) -> None:
        num_reported = 0
        while (item := self._lines.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self.num_dropped > num_reported:
                num_new = self.num_dropped - num_reported
                num_reported += num_new
                self._write(f'{{"event": "log_lines_dropped", "num_dropped": {num_new}}}')
            self._write(item)

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # stderr is closed or its reader is gone: there is no other place to tell it.
            self.num_dropped += 1
