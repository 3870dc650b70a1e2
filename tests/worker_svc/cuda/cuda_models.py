"""Random small models on a CUDA device, and what tests run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagewire.engine_config import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.runner_factories import make_prompts
from tests.worker_svc.step_driver import DriverRequest, StepDriver
from tests.worker_svc.tiny_models import write_tiny_model
from worker_svc.model_runner import ModelRunner

KV_BYTES = 64 * 2**20
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


def write_model(directory: Path, **overrides: Any) -> Any:
    """A model with heads of 64; returns the transformers model, on the CPU."""
    return write_tiny_model(directory, **SHAPE | overrides)


def make_config(directory: Path, dtype: Any = "bfloat16", **device: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(directory), dtype=dtype),
        cache=CacheConfig(kv_cache_memory_bytes=KV_BYTES),
        scheduler=SchedulerConfig(max_num_seqs=16),
        device=DeviceConfig(device="cuda", **device),
    )


def with_attention(config: EngineConfig, backend: Any) -> EngineConfig:
    return replace(config, attention=AttentionConfig(attention_backend=backend))


def load_runner(config: EngineConfig) -> ModelRunner:
    runner = ModelRunner(config)
    runner.load(lambda stage, fraction: None)
    return runner


def run_prompts(
    runner: ModelRunner,
    lengths: Sequence[int],
    params: SamplingParams,
    max_tokens: int = 12,
    **options: Any,
) -> list[DriverRequest]:
    driver = StepDriver(runner, **{"num_blocks": 256, "block_size": 16} | options)
    requests = [driver.add(prompt, params, max_tokens) for prompt in make_prompts(lengths)]
    driver.run()
    return requests
