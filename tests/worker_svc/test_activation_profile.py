"""The profile of a loaded model, and the size of the KV cache that follows from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pagewire.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from tests.worker_svc import tiny_models
from worker_svc import cpu_memory
from worker_svc.model_runner import ModelRunner

VOCAB_SIZE = 160
FREE_BYTES = 10**9


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    tiny_models.write_tiny_model(tmp_path)
    monkeypatch.setattr(cpu_memory, "free_memory_bytes", lambda: FREE_BYTES)
    return EngineConfig(
        model=ModelConfig(model=str(tmp_path), dtype="float32"),
        device=DeviceConfig(device="cpu", num_threads=1),
    )


def available_bytes(config: EngineConfig) -> int:
    stages: set[str] = set()
    runner = ModelRunner(config)
    runner.load(lambda stage, fraction: stages.add(stage))
    assert ("profile_memory" in stages) == (config.cache.kv_cache_memory_bytes is None)
    return runner.available_kv_bytes()


def with_step(config: EngineConfig, num_tokens: int, num_seqs: int) -> EngineConfig:
    scheduler = SchedulerConfig(max_num_batched_tokens=num_tokens, max_num_seqs=num_seqs)
    return replace(config, scheduler=scheduler)


def test_a_larger_step_leaves_less_for_the_kv_cache(config: EngineConfig) -> None:
    small = available_bytes(with_step(config, 256, 64))
    assert small < FREE_BYTES * cpu_memory.FREE_SHARE
    more_tokens = available_bytes(with_step(config, 2048, 64))
    # At least the two halves of the MLP, in float32, of each token more.
    assert 2 * (small - more_tokens) > (2048 - 256) * 2 * 96 * 4
    more_rows = available_bytes(with_step(config, 256, 256))
    assert 2 * (small - more_rows) > (256 - 64) * VOCAB_SIZE * 4


def test_a_size_that_is_given_is_taken_without_a_profile(config: EngineConfig) -> None:
    given = replace(config, cache=CacheConfig(kv_cache_memory_bytes=12345))
    assert available_bytes(given) == 12345


def test_the_shortest_sequences_are_profiled_as_well(config: EngineConfig) -> None:
    short = replace(config, model=replace(config.model, max_model_len=17))
    assert 0 < available_bytes(short) < FREE_BYTES
