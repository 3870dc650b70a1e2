"""A workload as a trace: one line a request, JSONL or CSV, read as it is replayed.

Owns the names of the columns and the checks; it holds one line at a time.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from pagewire.kit.errors import InvalidRequestError

MAX_LINE_CHARS = 10_000
MAX_NUM_TOKENS = 100_000_000


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a workload; the fields are the columns of a trace."""

    arrival_time_s: float
    """Since the start; never less than the line before."""
    num_prompt_tokens: int
    """The shared prefix included."""
    num_output_tokens: int
    """The request ends by length when it has them, or at the engine's --max-model-len."""
    shared_prefix_id: str | None = None
    """Requests with the same id begin with the same tokens."""
    num_shared_prefix_tokens: int = 0
    priority: int = 0


_NAMES = tuple(field.name for field in fields(TraceRequest))
_REQUIRED = _NAMES[:3]


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """Read a trace, lazily: CSV with a header line if the name ends in `.csv`, else JSONL.

    Raises:
        InvalidRequestError: Names the line and what is wrong with it.
    """
    try:
        file = path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise _invalid(f"{path}: {error.strerror}") from error
    with file:
        rows = _csv_rows(file) if path.suffix.lower() == ".csv" else _json_rows(file)
        last_s = 0.0
        number = 0
        try:
            for number, row in rows:  # noqa: B007 (the error names it)
                request = _parse(row)
                if request.arrival_time_s < last_s:
                    raise ValueError("arrival_time_s is earlier than on the line before")
                last_s = request.arrival_time_s
                yield request
        except (ValueError, TypeError, csv.Error) as error:
            raise _invalid(f"{path}, line {number}: {error}") from error


def _json_rows(file: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_CHARS + 1), ""), 1):
        if len(line) > MAX_LINE_CHARS:
            raise ValueError(f"line {number} is longer than {MAX_LINE_CHARS} characters")
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield number, row


def _csv_rows(file: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(file, strict=True)
    for row in reader:
        if None in row:
            raise ValueError(f"line {reader.line_num} has more cells than the header")
        yield reader.line_num, {name: cell for name, cell in row.items() if cell}


def _parse(row: Mapping[str, Any]) -> TraceRequest:
    unknown = sorted(set(row) - set(_NAMES))
    if unknown:
        raise ValueError(f"unknown column {unknown[0]!r}; known are {', '.join(_NAMES)}")
    missing = [name for name in _REQUIRED if name not in row]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    arrival_time_s = float(row["arrival_time_s"])
    if not math.isfinite(arrival_time_s) or arrival_time_s < 0:
        raise ValueError("arrival_time_s must be a finite number, not negative")
    prefix_id = row.get("shared_prefix_id")
    return TraceRequest(
        arrival_time_s,
        _count(row, "num_prompt_tokens", 1),
        _count(row, "num_output_tokens", 1),
        None if prefix_id is None else str(prefix_id),
        _count(row, "num_shared_prefix_tokens", 0),
        int(row.get("priority", 0)),
    )


def _count(row: Mapping[str, Any], name: str, least: int) -> int:
    value = int(row.get(name, 0))
    if not least <= value <= MAX_NUM_TOKENS:
        raise ValueError(f"{name} must be {least} to {MAX_NUM_TOKENS}")
    return value


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, reason="INVALID_TRACE", field="trace")
