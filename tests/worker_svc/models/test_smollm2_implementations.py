"""The embedded model through our own module and through the Transformers backend, in float32."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig
from tests.worker_svc.step_driver import StepDriver
from tests.worker_svc.test_smollm2_parity import make_prompts
from worker_svc.model_runner import ModelRunner


def greedy_ids(
    model_impl: Any, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    runner = ModelRunner(
        EngineConfig(
            model=ModelConfig(model="smollm2", dtype="float32", model_impl=model_impl),
            device=DeviceConfig(device="cpu", num_threads=1),
        )
    )
    runner.load(lambda stage, fraction: None)
    driver = StepDriver(runner, num_blocks=512)
    requests = [driver.add(prompt, max_tokens=max_tokens) for prompt in prompts]
    driver.run()
    return [request.output_token_ids for request in requests]


def assert_equal_ids(prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    own = greedy_ids("pagewire", prompts, max_tokens)
    gc.collect()  # Half a gigabyte each.
    assert greedy_ids("transformers", prompts, max_tokens) == own
    assert len({token_id for output in own for token_id in output}) > 10


@pytest.mark.timeout(300)
def test_both_implementations_give_the_same_greedy_ids() -> None:
    assert_equal_ids(make_prompts()[4:16:3], max_tokens=16)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_implementations_give_the_same_32_greedy_ids_for_20_prompts() -> None:
    prompts = make_prompts()
    assert len(prompts) == 20
    assert_equal_ids(prompts, max_tokens=32)
