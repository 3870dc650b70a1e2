from dataclasses import replace

import pytest

from pagewire.engine_config import ModelConfig
from pagewire.kit.errors import FailedPreconditionError, InvalidRequestError
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
