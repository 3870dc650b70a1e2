"""The xformers backend in a whole stack, its kernels in Triton's interpreter.

A tiny model, few tokens: a layer's attention takes tenths of a second here. Chunked prefill, prefix
hits, preemption and verified drafts come together, and the tokens are those of the torch backend.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pagewire.sampling_params import SamplingParams
from tests.e2e.completions import TokenRequest, one_by_one
from tests.e2e.held import at_once
from tests.e2e.stack import Stack, start_stack
from tests.e2e.test_requests import is_idle, wait_for_load
from tests.worker_svc.tiny_models import write_tiny_model

INTERPRETER = {"TRITON_INTERPRET": "1"}
MAX_TOKENS = 8
VOCAB_SIZE = 160
CERTAIN_TOKEN = 42
CROWDED = (
    "--num-gpu-blocks-override=8",
    "--max-num-batched-tokens=24",
    "--max-num-seqs=6",
    "--speculative-method=ngram",
    "--num-speculative-tokens=3",
    "--prompt-lookup-min=1",
)
"""Prompts in chunks, drafts, and 7 usable blocks of 16 tokens for requests of 3 blocks each."""


def write_model(directory: Path, **overrides: object) -> str:
    """Two layers of multi-query attention in float32, and a tokenizer of numbered words."""
    write_tiny_model(directory, num_attention_heads=2, num_key_value_heads=1, **overrides)
    vocabulary = {f"t{number}": number for number in range(VOCAB_SIZE)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
    tokenizer = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return f"--model={directory}"


def make_requests(number: int) -> list[TokenRequest]:
    """Prompts with a block in common, or of a phrase that repeats; outputs that cross blocks."""
    rng = random.Random(7)
    common = [rng.randrange(3, VOCAB_SIZE) for _ in range(16)]
    phrase = [rng.randrange(3, VOCAB_SIZE) for _ in range(7)]
    prompts = [
        phrase * 4
        if index % 3 == 0
        else common + [rng.randrange(3, VOCAB_SIZE) for _ in range(12 + index % 3)]
        for index in range(number)
    ]
    # Few tokens to choose from, so that drafts are right now and then.
    params = [
        SamplingParams(
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
            allowed_token_ids=tuple(range(20, 22 + 40 * (index % 2))),
        )
        for index in range(number)
    ]
    return [TokenRequest(tuple(prompt), each) for prompt, each in zip(prompts, params, strict=True)]


def make_certain_request() -> TokenRequest:
    """With one token to choose from: its drafts are right."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
        allowed_token_ids=(CERTAIN_TOKEN,),
    )
    return TokenRequest((5, 6, 7), params)


@pytest.mark.timeout(600)
async def test_a_crowded_stack_gives_the_tokens_of_the_torch_backend(tmp_path: Path) -> None:
    flags = (write_model(tmp_path), "--dtype=float32", "--max-model-len=64")
    requests = make_requests(4)
    with start_stack(*flags, "--attention-backend=torch") as stack:
        expected = await one_by_one(stack.http_url, requests)
    xformers = ("--attention-backend=xformers", f"--log-dir={tmp_path}")
    with start_stack(*flags, *CROWDED, *xformers, env=INTERPRETER) as stack:
        assert await at_once(stack, requests) == expected
        load = await wait_for_load(stack, is_idle)
        [output] = await one_by_one(stack.http_url, [make_certain_request()])
        after = await wait_for_load(stack, is_idle)
    assert load.num_preemptions > 0
    assert load.prefix_cache_hits > 0
    assert len({token_id for output in expected for token_id in output}) > 10
    assert output == [CERTAIN_TOKEN] * MAX_TOKENS
    assert after.num_steps - load.num_steps < MAX_TOKENS  # drafts were verified, and right
    [chosen] = read_log(tmp_path / "worker.log", "attention_backend")
    assert (chosen["backend"], chosen["reason"]) == ("xformers", "--attention-backend")
    [initialized] = read_log(tmp_path / "scheduler.log", "worker_initialized")
    assert initialized["attention_backend"] == "xformers"


def test_without_the_interpreter_the_start_ends_and_says_what_to_change(tmp_path: Path) -> None:
    flags = (write_model(tmp_path), "--attention-backend=xformers", "--dtype=float32")
    stack = Stack(flags, {"TRITON_INTERPRET": "0"})
    try:
        assert stack.process.wait(100) != 0
        assert "attention_backend xformers runs on a CPU in Triton's" in stack.stderr()
        assert "TRITON_INTERPRET=1" in stack.stderr()
    finally:
        stack.close()


def read_log(path: Path, event: str) -> list[dict[str, Any]]:
    """Records of an event in a service's log."""
    lines = path.read_text().splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return [record for record in records if record["event"] == event]
