from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagewire.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
)
from pagewire.sampling_params import SamplingParams, ThinkingBudget
from tests.worker_svc import tiny_models
from tests.worker_svc.ranks import WAIT_S, RanksRunner, joined_ranks
from tests.worker_svc.step_driver import Propose, StepDriver
from tests.worker_svc.tiny_gguf import write_gguf
from worker_svc.grammar_masks import Bitmasks
from worker_svc.input_batch import StepError
from worker_svc.model_runner import ModelRunner
from worker_svc.models.config import UnsupportedModelError
from worker_svc.parallel.groups import ParallelGroups
from worker_svc.parallel.layout import RankLayout
from worker_svc.step import NewRequest, SchedulerOutput

LAYOUTS = {"TP 2": (2, 1), "PP 2": (1, 2), "TP 2 x PP 2": (2, 2)}
SAMPLED = SamplingParams(
    temperature=1.0,
    top_k=40,
    top_p=0.95,
    seed=99,
    logprobs=3,
    thinking_budget=ThinkingBudget(5, (8,), (9, 10), 0),
)
GREEDY = SamplingParams(temperature=0.0, logprob_token_ids=(7, 120, 3))


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    tiny_models.write_tiny_model(directory)
    return directory


def config_of(model: Path, tp_size: int = 1, pp_size: int = 1) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(model), dtype="float32"),
        cache=CacheConfig(kv_cache_memory_bytes=2**24),
        device=DeviceConfig(device="cpu", num_threads=1),
        parallel=ParallelConfig(tensor_parallel_size=tp_size, pipeline_parallel_size=pp_size),
    )


def drive(runner: Any, sampling: SamplingParams, max_tokens: int = 10) -> StepDriver:
    """Prompts of several lengths in chunks; one request is preempted on the way."""
    driver = StepDriver(runner, num_blocks=128, block_size=8, chunk=16)
    rng = random.Random(0)
    for length in (1, 7, 17, 40):
        prompt = [rng.randrange(3, 160) for _ in range(length)]
        driver.add(prompt, sampling, max_tokens, preempt_after=4 if length == 7 else None)
    driver.run()
    return driver


def assert_same(expected: StepDriver, actual: StepDriver) -> None:
    for one, other in zip(expected.requests, actual.requests, strict=True):
        assert one.failure is None and other.failure is None
        assert other.output_token_ids == one.output_token_ids
        for logprobs, others in zip(one.logprobs, other.logprobs, strict=True):
            assert others == pytest.approx(logprobs, abs=2e-4)


def on_ranks(model: Path, tp_size: int, pp_size: int, sampling: SamplingParams) -> StepDriver:
    config = config_of(model, tp_size, pp_size)
    with joined_ranks(tp_size, pp_size) as ranks:
        return drive(RanksRunner(ranks, lambda groups: ModelRunner(config, groups)), sampling)


def on_one(model: Path, sampling: SamplingParams) -> StepDriver:
    runner = ModelRunner(config_of(model))
    runner.load(lambda phase, fraction: None)
    return drive(runner, sampling)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_several_ranks_give_what_one_gives(
    tiny_model: Path, layout: str, sampling: SamplingParams
) -> None:
    expected = on_one(tiny_model, sampling)
    assert_same(expected, on_ranks(tiny_model, *LAYOUTS[layout], sampling))
    tokens = {token_id for request in expected.requests for token_id in request.output_token_ids}
    assert len(tokens) > 10, "a model that repeats itself compares nothing"


VARIANTS: dict[str, tuple[dict[str, Any], Sequence[int]]] = {
    "one KV head on both ranks": (tiny_models.VARIANTS["multi-query"], (2, 1)),
    "tied, a vocabulary that does not divide": (
        {"tie_word_embeddings": True, "vocab_size": 163},
        (2, 2),
    ),
    "attention biases": (tiny_models.VARIANTS["attention biases"], (2, 1)),
    "mlp biases": (tiny_models.VARIANTS["mlp biases"], (2, 1)),
    "qwen2": (tiny_models.VARIANTS["qwen2"], (2, 1)),
    "qwen3": (tiny_models.VARIANTS["qwen3"], (2, 1)),
    "windows that differ by stage": (tiny_models.VARIANTS["qwen2 sliding window"], (1, 2)),
    "4 ranks, KV heads twice each": ({}, (4, 1)),
    "3 stages of 7 layers": ({"num_hidden_layers": 7}, (1, 3)),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_family(tmp_path: Path, variant: str) -> None:
    overrides, (tp_size, pp_size) = VARIANTS[variant]
    tiny_models.write_tiny_model(tmp_path, **overrides)
    expected = on_one(tmp_path, GREEDY)
    assert_same(expected, on_ranks(tmp_path, tp_size, pp_size, GREEDY))


def test_a_gguf_file_over_ranks(tmp_path: Path) -> None:
    model = tiny_models.write_tiny_model(tmp_path / "hf", num_key_value_heads=1)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model, "llama")
    assert_same(on_one(path, GREEDY), on_ranks(path, 2, 2, GREEDY))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafts_and_masks_over_ranks(tiny_model: Path, layout: str) -> None:
    """Stages take in as many tokens as were verified; masked rows draw under their masks."""

    def even_after(output: Sequence[int]) -> Bitmasks:
        pattern = 0b01010101 if len(output) % 2 else 0b10101010
        return np.full((160 // 8,), pattern, dtype=np.uint8)

    def drive_all(runner: Any, drafts: Sequence[Sequence[int]]) -> list[list[int]]:
        driver = StepDriver(runner, num_blocks=128, block_size=8, chunk=16)
        rng = random.Random(1)
        requests = [
            driver.add(
                [rng.randrange(3, 160) for _ in range(5 + 9 * place)],
                SAMPLED,
                max_tokens=12,
                propose=mixed(drafts[place]) if drafts else None,
                mask_of=even_after if place % 2 else None,
            )
            for place in range(4)
        ]
        driver.run()
        assert all(request.failure is None for request in requests)
        return [request.output_token_ids for request in requests]

    runner = ModelRunner(config_of(tiny_model))
    runner.load(lambda phase, fraction: None)
    expected = drive_all(runner, ())
    tp_size, pp_size = LAYOUTS[layout]
    config = config_of(tiny_model, tp_size, pp_size)
    with joined_ranks(tp_size, pp_size) as ranks:
        on_all = RanksRunner(ranks, lambda groups: ModelRunner(config, groups))
        assert drive_all(on_all, expected) == expected
    assert [token_id % 2 for token_id in expected[1]] == [1, 0] * 6


def mixed(expected: Sequence[int]) -> Propose:
    """Two right drafts and a wrong one."""

    def propose(output: Sequence[int]) -> list[int]:
        right = list(expected[len(output) : len(output) + 2])
        return [*right, 3] if len(right) == 2 else right

    return propose


def test_a_failed_step_of_one_rank_ends_the_group(tiny_model: Path) -> None:
    config = config_of(tiny_model, 2)
    with joined_ranks(2) as ranks:
        runner = RanksRunner(ranks, lambda groups: ModelRunner(config, groups))
        runner.allocate_kv_cache(16, 8)
        new = NewRequest(1, "r", [5, 6, 7], (), GREEDY, 0, [1])
        good = SchedulerOutput(1, [new], [1], [3])
        # This rank knows no such request; the other one waits for it in the first layer.
        bad = SchedulerOutput(1, (), [1], [3])
        waiting = ranks.submit(0, lambda: runner.runners[0].execute(good))
        with pytest.raises(StepError):
            ranks.submit(1, lambda: runner.runners[1].execute(bad)).result(WAIT_S)
        with pytest.raises(RuntimeError, match="by peer"):
            waiting.result(WAIT_S)
        with pytest.raises(RuntimeError, match="in no group"):
            ranks.submit(1, lambda: runner.runners[1].execute(good)).result(WAIT_S)


def test_models_of_the_transformers_backend_are_refused_by_name(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path, architecture="Olmo2")
    runner = ModelRunner(config_of(tmp_path, 2), ParallelGroups(RankLayout(0, 2)))
    with pytest.raises(UnsupportedModelError, match="must be 1 for architecture Olmo2ForCausalLM"):
        runner.load(lambda phase, fraction: None)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_finds_its_memory_before_it_meets_the_others(tiny_model: Path, rank: int) -> None:
    config = replace(config_of(tiny_model, 2, 2), cache=CacheConfig())
    runner = ModelRunner(config, ParallelGroups(RankLayout(rank, 2, 2)))
    runner.load(lambda phase, fraction: None)
    # One layer of one KV head of two.
    assert runner.kv_bytes_per_block(16) == 2 * 16 * 16 * 4
    assert runner.available_kv_bytes() > 0
