"""`--batch-invariant`: a token's logits have the same bits whatever is computed beside it.

Every run keeps a digest of the logits at each position, by the tokens up to it. Runs differ in
batch mates, chunks, preemptions, drafts and prefix hits, and must agree in every bit.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.engine_config import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
)
from pagewire.sampling_params import SamplingParams
from tests.worker_svc import tiny_models
from tests.worker_svc.step_driver import GREEDY, DriverRequest, StepDriver
from tests.worker_svc.test_smollm2_parity import TEXT, VOCAB_SIZE
from tests.worker_svc.transformer_families import write_family
from worker_svc.input_batch import StepInputs
from worker_svc.layers import linear
from worker_svc.model_runner import ModelRunner
from worker_svc.models.llama import LlamaForCausalLM

OWN: dict[str, dict[str, Any]] = {
    "grouped-query": {},
    "multi-query": tiny_models.MQA,
    "qwen3": tiny_models.VARIANTS["qwen3"],
    "sliding window": tiny_models.VARIANTS["mistral sliding window"],
}
FAMILIES = ("gpt2", "gemma2", "mixtral")
LENGTHS = (1, 3, 9, 33, 131)
"""Of the tiny models' prompts; the last one is longer than a tile of keys."""
MAX_TOKENS = 5
SAMPLED = SamplingParams(temperature=0.9, top_k=30, logprobs=3, presence_penalty=0.5, seed=5)
SMOLLM2_MAX_TOKENS = 4


def make_runner(model: str | Path, num_threads: int = 1, **fields: Any) -> ModelRunner:
    runner = ModelRunner(
        EngineConfig(
            model=ModelConfig(model=str(model), batch_invariant=True, **fields),
            # Memory is not what is tried here, so it need not be measured.
            cache=CacheConfig(kv_cache_memory_bytes=2**28),
            device=DeviceConfig(num_threads=num_threads),
        )
    )
    runner.load(lambda stage, fraction: None)
    return runner


def make_prompts(lengths: Sequence[int]) -> list[list[int]]:
    rng = random.Random(4)
    return [[rng.randrange(3, 160) for _ in range(length)] for length in lengths]


@dataclass
class Record:
    """What one way of computing requests gave."""

    logits: dict[bytes, bytes] = field(default_factory=dict)
    """Digests of logits, by the tokens up to their position."""
    outputs: list[list[int]] = field(default_factory=list)
    logprobs: list[list[dict[int, float]]] = field(default_factory=list)

    def add_logits(self, inputs: StepInputs, logits: torch.Tensor) -> None:
        values = logits.numpy()
        token = 0
        for row in inputs.rows:
            for position in range(row.start, row.end):
                tokens = row.state.token_ids[: position + 1].tobytes()
                digest = hashlib.blake2b(values[token].tobytes(), digest_size=16).digest()
                assert self.logits.setdefault(tokens, digest) == digest
                token += 1

    def add_results(self, requests: Sequence[DriverRequest]) -> None:
        self.outputs += [request.output_token_ids for request in requests]
        self.logprobs += [request.logprobs for request in requests]

    def check_equal(self, expected: Record) -> None:
        """Logits of drafts that were not taken are left out."""
        differing = [
            len(tokens) // 4
            for tokens, digest in expected.logits.items()
            if self.logits.get(tokens) != digest
        ]
        assert differing == [], f"{len(expected.logits)} in all; lengths that differ"
        assert self.outputs == expected.outputs
        assert self.logprobs == expected.logprobs


@contextmanager
def recording(runner: ModelRunner, record: Record) -> Iterator[None]:
    """Adds the logits at every position that a step computes."""
    loaded = runner._loaded
    assert loaded is not None
    forward = loaded.forward

    def recorded(inputs: StepInputs) -> torch.Tensor:
        hidden = forward(inputs)
        num_tokens = inputs.query_start_loc[-1]
        record.add_logits(inputs, loaded.compute_logits(hidden[:num_tokens]))
        return hidden

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded, "forward", recorded)
        yield


def run(
    runner: ModelRunner,
    batches: Sequence[Sequence[Sequence[int]]],
    *,
    max_tokens: int = MAX_TOKENS,
    chunk: int = 10_000,
    preempt_after: int | None = None,
    drafts_of: Record | None = None,
) -> Record:
    """Computes one batch of prompts after another; every second request is sampled."""
    record = Record()
    number = 0
    for prompts in batches:
        driver = StepDriver(runner, num_blocks=1024, block_size=8, chunk=chunk)
        requests = []
        for prompt in prompts:
            sampling = SAMPLED if number % 2 else GREEDY
            known = drafts_of.outputs[number] if drafts_of else []
            propose = _proposer(known) if known else None
            requests.append(driver.add(prompt, sampling, max_tokens, preempt_after, propose))
            number += 1
        with recording(runner, record):
            driver.run()
        record.add_results(requests)
    return record


def _proposer(known: Sequence[int]) -> Any:
    """Two right drafts and a wrong one."""

    def propose(output: Sequence[int]) -> list[int]:
        right = list(known[len(output) : len(output) + 2])
        return [*right, (right[-1] + 1) % 100 + 3] if right else []

    return propose


def alone(prompts: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    return [[prompt] for prompt in prompts]


def assert_invariant(runner: ModelRunner) -> None:
    prompts = make_prompts(LENGTHS)
    expected = run(runner, alone(prompts))
    assert len(expected.logits) == sum(LENGTHS) + len(LENGTHS) * (MAX_TOKENS - 1)
    assert len(set(expected.logits.values())) == len(expected.logits)
    run(runner, [prompts]).check_equal(expected)
    run(runner, [prompts], chunk=1).check_equal(expected)
    run(runner, [prompts], chunk=16, preempt_after=2).check_equal(expected)
    run(runner, [prompts], drafts_of=expected).check_equal(expected)


@pytest.mark.parametrize(
    ("variant", "num_threads"),
    [*((variant, 1) for variant in OWN), ("grouped-query", 2), ("multi-query", 2)],
)
def test_batch_invariance_of_our_own_module(variant: str, num_threads: int, tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path, **OWN[variant])
    assert_invariant(make_runner(tmp_path, num_threads))


@pytest.mark.parametrize("family", FAMILIES)
def test_batch_invariance_of_the_transformers_backend(family: str, tmp_path: Path) -> None:
    write_family(tmp_path, family)
    assert_invariant(make_runner(tmp_path, model_impl="transformers"))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_batch_invariance_of_quantized_weights(quantization: str, tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path)
    assert_invariant(make_runner(tmp_path, quantization=quantization))


def test_batch_invariance_of_a_prefix_hit(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path)
    runner = make_runner(tmp_path)
    [prompt] = make_prompts([37])
    longer = [*prompt, *make_prompts([20])[0]]
    expected = run(runner, [[longer]])
    driver = StepDriver(runner, block_size=8)
    first = driver.add(prompt, max_tokens=8)
    driver.step()
    hit = driver.add(longer, max_tokens=MAX_TOKENS)
    hit.block_ids, hit.num_computed_tokens = first.block_ids[:4], 32
    record = Record()
    with recording(runner, record):
        driver.run()
    own = [tokens for tokens in expected.logits if len(tokens) > 4 * 37]
    assert len(own) == 20 + MAX_TOKENS - 1
    assert [record.logits[tokens] for tokens in own] == [expected.logits[tokens] for tokens in own]
    assert hit.output_token_ids == expected.outputs[0]


def test_batch_invariance_takes_float32_by_itself(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path)
    loaded = make_runner(tmp_path, dtype="auto")._loaded
    assert loaded is not None
    assert loaded.info.dtype == "float32"


@pytest.mark.parametrize(("num_threads", "way"), [(1, "leave --batch-"), (2, "--num-threads 1")])
def test_batch_invariance_is_refused_where_a_product_depends_on_its_rows(
    num_threads: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.write_tiny_model(tmp_path)

    def careless(rows: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        few = len(rows) < 16
        return torch.nn.functional.linear(rows, *weights) * (1.0 + few * 1e-6)

    monkeypatch.setattr(linear, "functional_product", careless)
    with pytest.raises(ValueError, match=f"batch_invariant does not hold .* chunks .* {way}"):
        make_runner(tmp_path, num_threads)


def test_batch_invariance_is_refused_where_logits_depend_on_the_rows_that_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.write_tiny_model(tmp_path)
    compute = LlamaForCausalLM.compute_logits

    def careless(model: LlamaForCausalLM, hidden: torch.Tensor) -> torch.Tensor:
        return compute(model, hidden) + (len(hidden) == 9)

    monkeypatch.setattr(LlamaForCausalLM, "compute_logits", careless)
    with pytest.raises(ValueError, match="number of requests that sample"):
        make_runner(tmp_path)


def test_batch_invariance_is_refused_with_xformers_on_a_cpu(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path)
    config = EngineConfig(
        model=ModelConfig(model=str(tmp_path), batch_invariant=True),
        attention=AttentionConfig(attention_backend="xformers"),
    )
    with pytest.raises(ValueError, match=r"xformers is not batch-invariant .* use torch"):
        ModelRunner(config).load(lambda stage, fraction: None)


def assert_smollm2_is_invariant(num_prompts: int, batch_size: int, num_threads: int) -> None:
    runner = make_runner("smollm2", num_threads)
    rng = random.Random(8)
    prompts = [
        [*(rng.randrange(100, VOCAB_SIZE) for _ in range(rng.randrange(60))), *TEXT]
        for _ in range(num_prompts)
    ]
    batches = [prompts[i : i + batch_size] for i in range(0, num_prompts, batch_size)]
    ways: dict[str, dict[str, Any]] = {
        "batches": {"batches": batches},
        "batches in chunks of 16": {"batches": batches, "chunk": 16},
        "batches in chunks of 1": {"batches": batches, "chunk": 1},
    }
    expected = run(runner, alone(prompts), max_tokens=SMOLLM2_MAX_TOKENS)
    num_tokens = sum(map(len, prompts)) + num_prompts * (SMOLLM2_MAX_TOKENS - 1)
    assert len(expected.logits) > 0.9 * num_tokens
    for way, arguments in ways.items():
        run(runner, max_tokens=SMOLLM2_MAX_TOKENS, **arguments).check_equal(expected)
        print(f"{num_prompts} prompts, {batch_size} a batch, {num_threads} threads, {way}:", end="")
        print(f" {len(expected.logits)} positions, all logits bitwise as alone")


@pytest.mark.timeout(300)
def test_batch_invariance_of_smollm2() -> None:
    assert_smollm2_is_invariant(num_prompts=2, batch_size=2, num_threads=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_batch_invariance_of_smollm2_with_64_prompts(num_threads: int) -> None:
    assert_smollm2_is_invariant(num_prompts=64, batch_size=32, num_threads=num_threads)
