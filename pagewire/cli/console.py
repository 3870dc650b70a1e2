"""What a terminal shows while a stack runs: progress, warnings of the children, restarts.

Children log JSON, one object a line. Here a line becomes short text, or progress, or nothing;
complete lines go to files if a folder is given. It knows no process and decides nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from pagewire.cli.child import in_words
from pagewire.kit.plain_text import one_line, without_controls

_LOUD_LEVELS = frozenset({"warning", "error", "critical"})
# In every line, or shown in another way.
_PLAIN_KEYS = frozenset({"event", "level", "timestamp", "logger", "service", "exception"})
_HOLD_S = 10.0
_MAX_HELD_LINES = 100
_MAX_TEXT_CHARS = 400


class Console:
    """Writes to one stream; close it to close its files.

    On a terminal, progress is a last line that changes in place; anywhere else each stage is a
    line of its own. While the stack starts, warnings of the children are held back for a while:
    they are shown once it is ready, or a child dies, or it takes long; if it gives up, its reason
    stands alone.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        verbose: bool = False,
        log_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            stream: Default: standard error.
            verbose: Show every line of the children, not only warnings.
            log_dir: Folder for one file a child with its complete output; it is created.
            clock: Seconds, monotonic.

        Raises:
            OSError: The folder cannot be used.
        """
        self._stream = stream or sys.stderr
        self._verbose = verbose
        self._in_place = self._stream.isatty()
        self._progress = ""
        self._stage = ""
        self._held: list[str] = []
        self._clock = clock
        self._hold_until_s = clock() + _HOLD_S
        self._log_dir = log_dir
        self._files: dict[str, TextIO] = {}
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)

    def line(self, child: str, line: str) -> None:
        """Take a line of a child's output."""
        if self._log_dir is not None:
            self._keep(self._log_dir, child, line)
        record = _parse(line)
        if record is None:
            self.say(f"{child}: {_cut(line)}")
        elif record["event"] in _PROGRESS_TEXTS and not self._verbose:
            self._show_progress(record)
        elif self._verbose:
            self.say(_readable(child, record, traceback=True))
        elif record.get("level") in _LOUD_LEVELS:
            self._held.append(_readable(child, record, traceback=False))
            if self._clock() >= self._hold_until_s or len(self._held) >= _MAX_HELD_LINES:
                self.release()

    def restarting(self, child: str, reason: str, delay_s: float) -> None:
        self.release()
        name, why = in_words(child), _cut(reason)
        self.say(f"pagewire: {name} died ({why}); starting it again in {delay_s:g} s")

    def release(self) -> None:
        """Show what was held back, and hold nothing back from now on."""
        self._hold_until_s = self._clock()
        held, self._held = self._held, []
        for text in held:
            self.say(text)

    def gave_up(self, reason: str) -> None:
        """Say why the stack ends, in one line; what was held back says the same in more words."""
        self._held.clear()
        self.say(f"error: {one_line(reason)}")

    def say(self, text: str) -> None:
        """Write a line of our own."""
        self.clear_progress()
        self._write(text + "\n")

    def clear_progress(self) -> None:
        """Take the line that shows progress off the terminal."""
        if self._progress and self._in_place:
            self._write("\r\x1b[K")
        self._progress = ""

    def close(self) -> None:
        self.clear_progress()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _show_progress(self, record: dict[str, Any]) -> None:
        stage, amount = _PROGRESS_TEXTS[record["event"]](record)
        if self._in_place:
            self.clear_progress()
            self._progress = _cut(f"{stage}{amount} ...", 78)
            self._write(self._progress)
        elif self._stage != stage:
            self._stage = stage
            self._write(f"{_cut(stage)} ...\n")

    def _keep(self, log_dir: Path, child: str, line: str) -> None:
        try:
            if child not in self._files:
                self._files[child] = (log_dir / f"{child}.log").open("a", encoding="utf-8")
            self._files[child].write(line + "\n")
            self._files[child].flush()
        except OSError as exc:
            self._log_dir = None  # said once; the stack is worth more than its log files
            self.say(f"pagewire: no more log files: {exc.strerror or exc}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal is gone; the stack goes on without one.
            self._in_place = False


def _worker_progress(record: dict[str, Any]) -> tuple[str, str]:
    """Return what a worker does and how far it is: the scheduler passes on what each one tells."""
    stage = str(record.get("stage")).replace("_", " ")
    done, total = record.get("done"), record.get("total")
    # A stage that cannot tell how far it is stays at 0: no figure says that better.
    if not isinstance(total, int) or not isinstance(done, int) or not 0 < done <= total:
        return f"worker: {stage}", ""
    return f"worker: {stage}", f" {100 * done // total} %"


def _kv_cache_sized(record: dict[str, Any]) -> tuple[str, str]:
    """Return the size of the KV cache that is allocated next."""
    blocks, block_size = record.get("num_blocks"), record.get("block_size")
    return f"worker: allocate KV cache, {blocks} blocks of {block_size} tokens", ""


_PROGRESS_TEXTS = {"worker_progress": _worker_progress, "kv_cache_sized": _kv_cache_sized}


def _parse(line: str) -> dict[str, Any] | None:
    """Return the record of a log line, None for any other text."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None


def _readable(child: str, record: dict[str, Any], *, traceback: bool) -> str:
    fields = [f"{key}={_cut(str(v), 120)}" for key, v in record.items() if key not in _PLAIN_KEYS]
    text = " ".join([f"{child}: {record.get('level', 'info')}: {record['event']}", *fields])
    exception = str(record.get("exception", "")).strip()
    if exception and traceback:
        return f"{_cut(text)}\n{without_controls(exception)}"
    return _cut(f"{text} ({exception.splitlines()[-1]})" if exception else text)


def _cut(text: str, limit: int = _MAX_TEXT_CHARS) -> str:
    clean = one_line(text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
