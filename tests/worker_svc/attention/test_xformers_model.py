"""A model on the xformers backend: layers with different windows, padded heads, and steps in a row.

Prompts in chunks, preemption and drafts, as a scheduler would have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from pagewire.engine_config import AttentionConfig, DeviceConfig, EngineConfig, ModelConfig
from tests.worker_svc import tiny_models
from tests.worker_svc.runner_factories import make_prompts
from tests.worker_svc.step_driver import StepDriver
from worker_svc.model_runner import ModelRunner

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MODELS: dict[str, dict[str, Any]] = {
    "one windowed layer": tiny_models.VARIANTS["qwen2 sliding window"] | tiny_models.MQA,
    "padded heads": tiny_models.VARIANTS["head_dim apart"] | tiny_models.MQA,
}


def generate(
    model: Path,
    backend: Literal["torch", "xformers"],
    lengths: Sequence[int],
    *,
    max_tokens: int = 5,
    chunk: int = 19,
    block_size: int = 16,
) -> list[list[int]]:
    """Greedy tokens; the first request has drafts, the last is preempted once."""
    config = EngineConfig(
        model=ModelConfig(model=str(model), dtype="float32"),
        device=DeviceConfig(device="cpu", num_threads=1),
        attention=AttentionConfig(attention_backend=backend),
    )
    runner = ModelRunner(config)
    assert runner.load(lambda phase, fraction: None).attention_backend == backend
    driver = StepDriver(runner, num_blocks=64, block_size=block_size, chunk=chunk)
    requests = [
        driver.add(
            prompt,
            max_tokens=max_tokens,
            propose=(lambda output: [5, *output[-2:]]) if number == 0 else None,
            preempt_after=2 if number == len(lengths) - 1 else None,
        )
        for number, prompt in enumerate(make_prompts(lengths))
    ]
    driver.run()
    return [request.output_token_ids for request in requests]


@pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS)
def test_tokens_are_those_of_the_torch_backend(tmp_path: Path, overrides: dict[str, Any]) -> None:
    tiny_models.write_tiny_model(tmp_path, **overrides)
    lengths = (23, 4, 17)
    expected = generate(tmp_path, "torch", lengths)
    assert len({token_id for output in expected for token_id in output}) > 10
    assert generate(tmp_path, "xformers", lengths) == expected


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("name", ["grouped-query", "mistral sliding window", "qwen3", "multi-head"])
def test_longer_runs_give_the_tokens_of_the_torch_backend(
    tmp_path: Path, name: str, block_size: int
) -> None:
    tiny_models.write_tiny_model(tmp_path, **tiny_models.VARIANTS[name])
    lengths = (40, 3, 17, 65, 100)

    def run(backend: Literal["torch", "xformers"]) -> list[list[int]]:
        return generate(tmp_path, backend, lengths, max_tokens=24, chunk=33, block_size=block_size)

    assert run("xformers") == run("torch")
