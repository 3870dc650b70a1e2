"""Loglikelihoods of texts from echo and logprobs, as lm-eval asks for them, against transformers.

transformers runs in a process of its own: it warns, and keeps half a gigabyte.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.model_source import resolve_model
from tests.e2e.completions import http_client, post
from tests.e2e.stack import Stack
from tests.worker_svc.reference import _load_smollm2 as load_smollm2
from tests.worker_svc.reference import cache_directory

TOLERANCE = 1e-3
TIMEOUT_S = 900.0
CONTEXTS = (
    ("The capital of France is", " Paris."),
    ("The capital of France is", " a small village."),
    ("Q: What is two plus two?\nA:", " 4"),
    ("def add(a, b):\n    return", " a + b\n"),
    ("今日は", "良い天気ですね 👩\u200d👩\u200d👧"),
)


def reference(rows: Sequence[Sequence[int]]) -> list[list[list[float]]]:
    """For each row and each of its tokens but the first: [logprob, 1 if it is the likeliest].

    It takes half a minute, so it is kept, under a name of all that decides it.
    """
    task = json.dumps([list(row) for row in rows])
    parts = (task, version("transformers"), resolve_model("smollm2").path.name)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = cache_directory() / f"smollm2-loglikelihoods-{key}.json"
    if not path.exists():
        command = [sys.executable, "-m", "tests.e2e.test_loglikelihoods", str(path)]
        subprocess.run(command, input=task, text=True, check=True, timeout=TIMEOUT_S)
    found: list[list[list[float]]] = json.loads(path.read_text())
    return found


def main() -> None:
    model, found = load_smollm2(), []
    with torch.inference_mode():
        for row in json.load(sys.stdin):
            logprobs = model(torch.tensor([row])).logits[0, :-1].float().log_softmax(dim=-1)
            followers = torch.tensor(row[1:])
            chosen = logprobs.gather(1, followers[:, None])[:, 0].tolist()
            likeliest = (logprobs.argmax(dim=-1) == followers).tolist()
            found.append([[*pair] for pair in zip(chosen, likeliest, strict=True)])
    path = Path(sys.argv[1])
    # Others may look for it meanwhile: it appears as a whole.
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(found))
    part.replace(path)


async def ask(stack: Stack, max_tokens: int, prompts: Sequence[Any]) -> list[dict[str, Any]]:
    body = {
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": max_tokens,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
        "return_token_ids": True,
    }
    async with http_client(stack.http_url) as client:
        answer = await post(client, "/v1/completions", body)
    assert answer["usage"]["completion_tokens"] == max_tokens * len(prompts)
    choices: list[dict[str, Any]] = answer["choices"]
    return choices


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [context + continuation for context, continuation in CONTEXTS]


@pytest.mark.timeout(2 * TIMEOUT_S)
def test_loglikelihoods_equal_those_of_transformers(smollm2_stack: Stack, texts: list[str]) -> None:
    """lm-eval's local-completions asks for one token more than it needs, or for none."""
    choices = asyncio.run(ask(smollm2_stack, 0, texts))
    rows = [choice["prompt_token_ids"] for choice in choices]
    expected = reference(rows)
    worst = 0.0
    for choice, text, row, pairs in zip(choices, texts, rows, expected, strict=True):
        assert choice["text"] == text
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        found = logprobs["token_logprobs"][1:]
        assert len(found) == len(row) - 1
        for place, (logprob, (wanted, is_likeliest)) in enumerate(
            zip(found, pairs, strict=True), 1
        ):
            worst = max(worst, abs(logprob - wanted))
            top = logprobs["top_logprobs"][place]
            token = logprobs["tokens"][place]
            assert top[token] == logprob
            assert (max(top, key=lambda each: top[each]) == token) == bool(is_likeliest)
    print(f"{sum(map(len, expected))} tokens of {len(texts)} texts; worst difference {worst:.2e}")
    assert worst < TOLERANCE

    # The same by token ids, with a token drawn behind them.
    drawn = asyncio.run(ask(smollm2_stack, 1, rows))
    for choice, before in zip(drawn, choices, strict=True):
        assert choice["text"].startswith(before["text"])
        names = ("tokens", "text_offset")
        for name in names:
            assert choice["logprobs"][name][:-1] == before["logprobs"][name]
        pairs = zip(
            choice["logprobs"]["token_logprobs"][1:-1],
            before["logprobs"]["token_logprobs"][1:],
            strict=True,
        )
        assert max(abs(one - other) for one, other in pairs) < TOLERANCE


if __name__ == "__main__":
    main()
