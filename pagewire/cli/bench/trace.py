"""Requests of a JSONL file: when each came, and its prompt or the blocks that it is made of.

A line has `timestamp` (milliseconds after the start; without it the request is due at once) and
either `prompt` (text or token ids) and `max_tokens`, or `input_length`, `output_length` and perhaps
`hash_ids`: one for each 512 tokens of the input, equal ones for equal tokens. The second form is
that of published traces, whose prompts are not to be seen: here they are made of the ids.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagewire.cli.bench.record import Job
from pagewire.cli.bench.workload import END_TOKEN_ID, FIRST_TOKEN_ID
from pagewire.kit.config import ConfigError

HASH_BLOCK_TOKENS = 512
_MAX_TOKENS = 10_000_000


def read_trace(path: Path, max_requests: int | None = None, speed: float = 1.0) -> list[Job]:
    """Return the requests of a file in the order in which they are due.

    Args:
        path: Of the file.
        max_requests: Take the first ones only.
        speed: How many times as fast as they came they are sent.

    Raises:
        ConfigError: Names the line and what it must have.
    """
    jobs: list[Job] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if max_requests is not None and len(jobs) >= max_requests:
                    break
                if line.strip():
                    jobs.append(_read_line(line, number, path))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no UTF-8 text") from None
    if not jobs:
        raise ConfigError(f"{path}: has no requests")
    jobs.sort(key=lambda job: job.due_s)
    first_s = jobs[0].due_s
    return [replace(job, due_s=(job.due_s - first_s) / speed) for job in jobs]


def _read_line(line: str, number: int, path: Path) -> Job:
    def refuse(rule: str) -> ConfigError:
        return ConfigError(f"{path}, line {number}: {rule}")

    try:
        fields = json.loads(line)
    except ValueError:
        raise refuse("is no JSON") from None
    if not isinstance(fields, dict):
        raise refuse("must be a JSON object")
    due_ms: Any = fields.get("timestamp", 0)
    if not _is_number(due_ms) or due_ms < 0:
        raise refuse("timestamp must be a number of milliseconds, at least 0")
    prompt = fields.get("prompt")
    name = "output_length" if prompt is None else "max_tokens"
    max_tokens: Any = fields.get(name)
    if not _is_count(max_tokens):
        raise refuse(f"{name} must be an integer of at least 1")
    if prompt is None:
        prompt = _made_prompt(fields.get("input_length"), fields.get("hash_ids", ()), number)
        if prompt is None:
            raise refuse(
                "needs prompt, or input_length (at least 1) and, if any, hash_ids: an integer for"
                f" each {HASH_BLOCK_TOKENS} tokens"
            )
    elif not _is_prompt(prompt):
        raise refuse("prompt must be text or a list of token ids, and not empty")
    return Job(prompt, max_tokens, due_ms / 1000)


def _made_prompt(input_length: Any, hash_ids: Any, number: int) -> list[int] | None:
    """Return as many token ids, by their blocks' ids; None: the fields do not fit."""
    if not _is_count(input_length) or not isinstance(hash_ids, list | tuple):
        return None
    num_blocks = -(-input_length // HASH_BLOCK_TOKENS)
    if hash_ids and (len(hash_ids) != num_blocks or not all(map(_is_integer, hash_ids))):
        return None
    # Without ids no two prompts share anything.
    names = [str(each) for each in hash_ids] or [f"{number}:{i}" for i in range(num_blocks)]
    return [token for name in names for token in _block(name)][:input_length]


def _block(name: str) -> Sequence[int]:
    rng = random.Random(name)
    return [rng.randrange(FIRST_TOKEN_ID, END_TOKEN_ID) for _ in range(HASH_BLOCK_TOKENS)]


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    return isinstance(prompt, list) and bool(prompt) and all(map(_is_token, prompt))


def _is_token(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < 2**32


def _is_count(value: Any) -> bool:
    return _is_integer(value) and 1 <= value <= _MAX_TOKENS


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
