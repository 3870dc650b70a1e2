from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig, ParallelConfig
from pagewire.sampling_params import SamplingParams
from tests.worker_svc import tiny_models
from tests.worker_svc.ranks import RanksRunner, joined_ranks
from tests.worker_svc.step_driver import StepDriver
from worker_svc.model_runner import ModelRunner

LAYOUTS = {"TP 2": (2, 1), "PP 2": (1, 2), "TP 2 x PP 2": (2, 2)}
SAMPLED = SamplingParams(temperature=1.0, top_k=40, top_p=0.95, seed=99, logprobs=3)
GREEDY = SamplingParams(temperature=0.0, logprobs=3)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    tiny_models.write_tiny_model(directory)
    return directory


def config_of(model: Path, tp_size: int = 1, pp_size: int = 1) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(model), dtype="float32"),
        device=DeviceConfig(num_threads=1),
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
