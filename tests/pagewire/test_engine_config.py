from typing import Any

import pytest

from pagewire.engine_config import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)


def test_the_batch_must_hold_one_token_of_every_running_request() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        SchedulerConfig(max_num_batched_tokens=10, max_num_seqs=11)


def test_without_chunked_prefill_a_step_must_hold_the_longest_prompt() -> None:
    with pytest.raises(ValueError, match="chunked prefill is off"):
        EngineConfig(
            model=ModelConfig(max_model_len=4096),
            scheduler=SchedulerConfig(max_num_batched_tokens=2048, enable_chunked_prefill=False),
        )


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (ModelConfig, "model", ""),
        (ModelConfig, "max_model_len", 1),
        (CacheConfig, "block_size", 0),
        (CacheConfig, "gpu_memory_utilization", 1.5),
        (CacheConfig, "kv_cache_memory_bytes", 0),
        (CacheConfig, "num_gpu_blocks_override", 1),
        (SchedulerConfig, "max_num_seqs", 0),
        (SchedulerConfig, "watermark", 1.0),
        (ParallelConfig, "tensor_parallel_size", 0),
        (DeviceConfig, "num_threads", 0),
    ],
)
def test_a_bad_value_is_refused_by_name(config: type, field: str, value: object) -> None:
    with pytest.raises(ValueError) as caught:
        config(**{field: value})
    assert caught.value.args[0] == field
    assert caught.value.args[1] == value


def test_the_digest_changes_with_what_the_worker_holds() -> None:
    assert EngineConfig().digest() != EngineConfig(model=ModelConfig(dtype="float32")).digest()
    attention = AttentionConfig(attention_backend="xformers")
    assert EngineConfig().digest() != EngineConfig(attention=attention).digest()


def test_the_digest_does_not_change_with_what_only_the_scheduler_uses() -> None:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_queued_requests=5))
    assert EngineConfig().digest() == config.digest()


def test_the_served_name_defaults_to_the_model() -> None:
    assert EngineConfig().served_model_names == ("smollm2",)
    named = EngineConfig(model=ModelConfig(served_model_name=("a", "b")))
    assert named.served_model_names == ("a", "b")


@pytest.mark.parametrize("size", ["tensor_parallel_size", "pipeline_parallel_size"])
@pytest.mark.parametrize(
    ("other", "flag"),
    [
        ({"device": DeviceConfig(device="sim")}, "--device sim"),
        ({"model": ModelConfig(model_impl="transformers")}, "--model-impl transformers"),
    ],
)
def test_several_ranks_need_a_model_that_can_be_split(
    size: str, other: dict[str, Any], flag: str
) -> None:
    with pytest.raises(ValueError, match=f"'{size}', 2, 'must be 1 with {flag}'"):
        EngineConfig(parallel=ParallelConfig(**{size: 2}), **other)
    assert EngineConfig(parallel=ParallelConfig(**{size: 2})).parallel.world_size == 2
