"""A model's directory without a tokenizer is served with one from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from benchmarks.tiny_llama import CONFIG
from tests.e2e.stack import Stack, start_stack


def _write_model(directory: Path) -> str:
    """Write all that the simulated worker reads: no tokenizer and no weights."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return f"--model={directory}"


def test_a_tokenizer_from_elsewhere_is_used_by_all_services(tmp_path: Path) -> None:
    flags = (_write_model(tmp_path), "--tokenizer=smollm2", "--device=sim")
    with start_stack(*flags) as stack:
        body = {"prompt": "one two", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{stack.http_url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_without_one_the_start_ends_and_says_what_to_change(tmp_path: Path) -> None:
    stack = Stack((_write_model(tmp_path), "--device=sim"))
    try:
        assert stack.end() == 1
        (error,) = (line for line in stack.stderr().splitlines() if line.startswith("error: "))
        assert "--tokenizer" in error
    finally:
        stack.close()
