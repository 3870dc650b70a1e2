"""The arithmetic of a memory profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagewire.engine_config import EngineConfig, SchedulerConfig, SpeculativeConfig
from pagewire.kit.errors import FailedPreconditionError
from worker_svc.memory_profile import (
    LargestStep,
    PeakAt,
    cpu_kv_bytes,
    cuda_kv_bytes,
    cuda_requested_bytes,
    extrapolate,
)

GIB = 2**30


def test_the_largest_step_is_that_of_the_scheduler() -> None:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=64))
    assert LargestStep.of(config) == LargestStep(512, 64)
    drafting = SpeculativeConfig(speculative_method="ngram", num_speculative_tokens=3)
    assert LargestStep.of(replace(config, speculative=drafting)) == LargestStep(512, 256)
    many = replace(drafting, num_speculative_tokens=100)
    assert LargestStep.of(replace(config, speculative=many)) == LargestStep(512, 512)


def test_a_peak_grows_along_the_line_of_two_smaller_ones() -> None:
    assert extrapolate((PeakAt(8, 1800), PeakAt(16, 2600)), 2048) == 1000 + 100 * 2048


def test_a_peak_is_never_below_one_that_was_measured() -> None:
    assert extrapolate((PeakAt(8, 100), PeakAt(16, 300)), 4) == 300
    assert extrapolate((PeakAt(8, 500), PeakAt(16, 300)), 2048) == 300


def test_a_cpu_takes_a_share_of_what_a_step_leaves() -> None:
    assert cpu_kv_bytes(10_000, 2_000, 0.5, limit_bytes=GIB) == 4_000
    assert cpu_kv_bytes(100 * GIB, 2_000, 0.5, limit_bytes=GIB) == GIB
    assert cpu_kv_bytes(1_000, 2_000, 0.5, limit_bytes=GIB) == 0


def test_a_cuda_device_gives_what_was_requested_less_what_is_used() -> None:
    requested = cuda_requested_bytes(80 * GIB, 79 * GIB, 0.9)
    assert requested == 72 * GIB
    assert cuda_requested_bytes(1001, 1001, 0.5) == 501
    assert cuda_kv_bytes(requested, 16 * GIB, 4 * GIB, GIB) == 51 * GIB
    assert cuda_kv_bytes(requested, 80 * GIB, 4 * GIB, GIB) == 0


def test_a_cuda_device_that_others_use_is_refused() -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        cuda_requested_bytes(80 * GIB, 70 * GIB, 0.9)
    assert "2.00 GiB are missing" in caught.value.message
    assert "--gpu-memory-utilization 0.9" in caught.value.message
    assert caught.value.metadata["missing_bytes"] == str(2 * GIB)
