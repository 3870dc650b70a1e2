"""The four services with a worker on a CUDA device, as a user starts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagewire.sampling_params import SamplingParams
from tests.e2e.completions import TokenRequest, together
from tests.e2e.stack import start_stack
from tests.worker_svc.cuda.cuda_models import write_model
from tests.worker_svc.cuda.devices import needs_cuda, of_triton
from tests.worker_svc.reference import GreedyReference, greedy
from tests.worker_svc.runner_factories import TORCH_VOCAB_SIZE, make_prompts

pytestmark = [needs_cuda, of_triton, pytest.mark.timeout(240)]

MAX_TOKENS = 16
PROMPTS = make_prompts([3, 17, 40, 200, 5, 90])
CLEAR_GAP = 6.0
FLAGS = ("--device=cuda", "--max-num-seqs=8", "--kv-cache-memory-bytes=67108864")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[GreedyReference]]:
    """A random model with a tokenizer of numbered words, and what transformers answers."""
    directory = tmp_path_factory.mktemp("model")
    reference = write_model(directory)
    vocabulary = {f"t{number}": number for number in range(TORCH_VOCAB_SIZE)}
    words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
    tokenizer = {"version": "1.0", "model": words, "pre_tokenizer": {"type": "Whitespace"}}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return f"--model={directory}", [greedy(reference, prompt, MAX_TOKENS) for prompt in PROMPTS]


def make_requests() -> list[TokenRequest]:
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    return [TokenRequest(tuple(prompt), params) for prompt in PROMPTS]


async def run(*flags: str) -> list[list[int]]:
    with start_stack(*FLAGS, *flags) as stack:
        return await together(stack.http_url, make_requests())


async def test_float32_gives_the_tokens_of_transformers(
    model: tuple[str, list[GreedyReference]],
) -> None:
    flag, references = model
    assert await run(flag, "--dtype=float32") == [each.token_ids for each in references]


@pytest.mark.parametrize("extra", [(), ("--enforce-eager",)])
async def test_bfloat16_gives_its_clear_tokens(
    model: tuple[str, list[GreedyReference]], extra: tuple[str, ...], tmp_path: Path
) -> None:
    flag, references = model
    outputs = await run(flag, *extra, f"--log-dir={tmp_path}")
    for output, reference in zip(outputs, references, strict=True):
        first_other = next(
            (
                i
                for i, pair in enumerate(zip(output, reference.token_ids, strict=True))
                if len(set(pair)) > 1
            ),
            None,
        )
        if first_other is not None:
            assert reference.gaps[first_other] < CLEAR_GAP
    records = [
        json.loads(line)
        for line in (tmp_path / "worker.log").read_text().splitlines()
        if line.startswith("{")
    ]
    chosen: dict[str, Any] = {record["event"]: record for record in records}
    assert chosen["attention_backend"]["backend"] == "xformers"
    assert chosen["cuda_graphs"]["recorded"] == (not extra)
