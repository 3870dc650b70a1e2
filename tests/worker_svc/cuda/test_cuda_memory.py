"""The memory profile, and sleep, on a CUDA device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagewire.engine_config import CacheConfig, EngineConfig, SchedulerConfig
from pagewire.kit.errors import FailedPreconditionError
from tests.worker_svc.cuda.cuda_models import load_runner, make_config, run_prompts, write_model
from tests.worker_svc.cuda.devices import CUDA, needs_cuda, of_triton
from tests.worker_svc.step_driver import GREEDY
from worker_svc import memory_profile
from worker_svc.cuda_memory import release_cuda_memory

pytestmark = [needs_cuda, of_triton]

GIB = 2**30


def profiled(directory: Path, utilization: float, num_tokens: int = 2048) -> EngineConfig:
    return replace(
        make_config(directory),
        cache=CacheConfig(gpu_memory_utilization=utilization),
        scheduler=SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=num_tokens),
    )


def test_the_kv_cache_gets_what_is_left_of_the_share(tmp_path: Path) -> None:
    write_model(tmp_path)
    total_bytes = torch.cuda.mem_get_info()[1]
    runner = load_runner(profiled(tmp_path, 0.5))
    available = runner.available_kv_bytes()
    assert 0.4 * total_bytes < available < 0.5 * total_bytes
    runner.allocate_kv_cache(available // runner.kv_bytes_per_block(16), 16)
    free_bytes, _ = torch.cuda.mem_get_info()
    # What was measured was enough: graphs are recorded, and a step runs.
    assert total_bytes - free_bytes < 0.5 * total_bytes + GIB
    del runner
    release_cuda_memory()


def test_a_larger_step_leaves_less(tmp_path: Path) -> None:
    write_model(tmp_path)
    small, large = (
        load_runner(profiled(tmp_path, 0.3, num_tokens)).available_kv_bytes()
        for num_tokens in (256, 32_768)
    )
    # At least the two halves of the MLP of each token more.
    assert small - large > (32_768 - 256) * 2 * 512 * 2 // 2


def test_a_share_that_is_not_free_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    total_bytes = torch.cuda.mem_get_info()[1]
    taken = torch.empty(total_bytes // 4, dtype=torch.uint8, device=CUDA)
    with pytest.raises(FailedPreconditionError, match="are missing") as caught:
        load_runner(profiled(tmp_path, 0.9))
    assert caught.value.reason == memory_profile.REASON
    del taken
    release_cuda_memory()


def test_a_kv_cache_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    runner = load_runner(make_config(tmp_path))
    too_many = 2 * torch.cuda.mem_get_info()[1] // runner.kv_bytes_per_block(16)
    with pytest.raises(FailedPreconditionError, match="are missing"):
        runner.allocate_kv_cache(too_many, 16)


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_gives_memory_back_and_ends_with_the_same_tokens(
    tmp_path: Path, level: int
) -> None:
    write_model(tmp_path, hidden_size=1024, intermediate_size=8192, num_attention_heads=16)
    release_cuda_memory()
    before = torch.cuda.memory_allocated()
    runner = load_runner(make_config(tmp_path))
    outputs = [r.output_token_ids for r in run_prompts(runner, [5, 40], GREEDY)]
    assert runner._loaded is not None
    weight_bytes = runner._loaded.info.weight_bytes
    assert torch.cuda.memory_allocated() - before > weight_bytes
    awake_free, _ = torch.cuda.mem_get_info()
    runner.sleep(level)
    asleep_free, _ = torch.cuda.mem_get_info()
    assert torch.cuda.memory_allocated() - before < 2**20
    assert asleep_free - awake_free > weight_bytes
    runner.wake_weights(lambda stage, fraction: None)
    assert [r.output_token_ids for r in run_prompts(runner, [5, 40], GREEDY)] == outputs
