from dataclasses import replace

import pytest

from pagewire.engine_config import ModelConfig
from pagewire.kit.errors import FailedPreconditionError, InvalidRequestError
from scheduler_svc.kv_cache_groups import KvCacheGroupSpec
from scheduler_svc.kv_sizing import plan_kv_cache
from tests.scheduler_svc.fakes import make_config, make_facts


def test_blocks_follow_from_the_memory_that_the_worker_found():
    plan = plan_kv_cache(make_config(num_gpu_blocks_override=None), make_facts())
    assert (plan.num_blocks, plan.block_size, plan.max_model_len) == (100, 4, 64)


def test_an_override_wins():
    assert plan_kv_cache(make_config(num_gpu_blocks_override=50), make_facts()).num_blocks == 50


def test_the_models_own_length_is_the_default():
    config = replace(make_config(), model=ModelConfig())
    assert plan_kv_cache(config, make_facts()).max_model_len == 128


def test_a_length_beyond_the_model_is_refused():
    config = replace(make_config(), model=ModelConfig(max_model_len=129))
    with pytest.raises(InvalidRequestError, match="made for \\(128\\)"):
        plan_kv_cache(config, make_facts())


def test_no_memory_says_which_flags_help():
    with pytest.raises(FailedPreconditionError, match="No available memory for the cache blocks"):
        plan_kv_cache(
            make_config(num_gpu_blocks_override=None), make_facts(available_kv_cache_bytes=0)
        )


def test_a_cache_too_small_for_one_full_request_says_what_would_fit():
    with pytest.raises(FailedPreconditionError) as error:
        plan_kv_cache(make_config(num_gpu_blocks_override=16), make_facts())
    assert "max seq len (64)" in str(error.value)
    assert "--kv-cache-memory-bytes or --num-gpu-blocks-override" in str(error.value)
    assert "--gpu-memory" not in str(error.value)
    assert "estimated maximum model length is 60" in str(error.value)


def test_one_full_request_and_the_null_block_are_enough():
    assert plan_kv_cache(make_config(num_gpu_blocks_override=17), make_facts()).num_blocks == 17


def test_one_full_request_holds_what_its_windows_need_at_a_time():
    # 64 tokens in blocks of 4: 16 of the full group; a step of 32 and a window of 5 touch 10.
    facts = make_facts(kv_cache_groups=(KvCacheGroupSpec(2), KvCacheGroupSpec(2, 5)))
    plan = plan_kv_cache(make_config(num_gpu_blocks_override=27), facts)
    assert (plan.num_blocks, plan.num_groups) == (27, 2)
    with pytest.raises(FailedPreconditionError) as error:
        plan_kv_cache(make_config(num_gpu_blocks_override=26), facts)
    # Of 25 blocks 10 are a window's, if the request is that long.
    assert "estimated maximum model length is 60" in str(error.value)


def test_the_estimate_is_the_longest_that_fits():
    facts = make_facts(kv_cache_groups=(KvCacheGroupSpec(2), KvCacheGroupSpec(2, 100)))
    with pytest.raises(FailedPreconditionError) as error:
        plan_kv_cache(make_config(num_gpu_blocks_override=10), facts)
    assert "estimated maximum model length is 16" in str(error.value)


def test_windows_alone_serve_any_length():
    facts = make_facts(kv_cache_groups=(KvCacheGroupSpec(4, 5),), max_position_embeddings=1_000_000)
    config = replace(make_config(num_gpu_blocks_override=11), model=ModelConfig())
    assert plan_kv_cache(config, facts).max_model_len == 1_000_000
