"""The first thing that a reader of README.md tries, on the stack that `make run` starts."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.stack import start_stack

QUESTION = "What is the capital of France?"


@pytest.mark.timeout(300)
def test_the_embedded_model_answers_with_the_settings_of_make_run() -> None:
    body = {
        "model": "smollm2",
        "temperature": 0,
        "max_tokens": 30,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    with start_stack("--model=smollm2") as stack:
        answer = httpx.post(f"{stack.http_url}/v1/chat/completions", json=body, timeout=120)
    assert answer.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."
