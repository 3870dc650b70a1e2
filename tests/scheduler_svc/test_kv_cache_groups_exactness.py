"""A crowded engine gives a request of a model with sliding windows the output that it has alone.

The model reads every window back through the block tables, so a block that is freed too early, or a
hit that lacks a block of the window, changes what it says.
"""

import random

import pytest

from scheduler_svc.scheduler import Scheduler
from tests.scheduler_svc.factories import add, make_limits
from tests.scheduler_svc.grouped_model import (
    FULL,
    GroupedDrafter,
    GroupedModel,
    expected_output,
    sliding,
)
from tests.scheduler_svc.test_scheduler_exactness import random_prompt, run_all

LAYOUTS = {
    "full": (FULL,),
    "full and sliding": (FULL, sliding(9)),
    "sliding alone": (sliding(9),),
    "three": (sliding(6), FULL, sliding(17)),
    "two windows": (sliding(5), sliding(13)),
    "a window of one": (sliding(1), FULL),
    "a window longer than any request": (sliding(1000), sliding(4)),
}


def run(groups, *, crowd, drafter=None, max_in_flight=2, **options):
    """Returns the scheduler, at the end of requests that were all exact."""
    rng = random.Random(5)
    limits = make_limits(kv_cache_groups=groups, max_model_len=64, max_num_seqs=33, **options)
    scheduler = Scheduler(limits, drafter=drafter)
    model = GroupedModel(groups, limits.num_blocks, limits.block_size)
    requests = [add(scheduler, random_prompt(rng), max_tokens=24) for _ in range(crowd)]
    run_all(scheduler, model, max_in_flight=max_in_flight)
    scheduler.check_integrity()
    assert scheduler.make_stats().kv_cache_usage == 0
    for request in requests:
        prompt = request.core_request.prompt_token_ids
        assert request.output_token_ids == expected_output(groups, prompt, 24, limits.eos_token_ids)
    return scheduler


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("chunk", [5, 16, 4096])
@pytest.mark.parametrize("blocks_a_group", [16, 1000])
@pytest.mark.parametrize("groups", LAYOUTS.values(), ids=LAYOUTS)
def test_outputs_are_the_same_whatever_the_engine_does(
    groups, blocks_a_group, chunk, enable_prefix_caching, max_in_flight
):
    scheduler = run(
        groups,
        crowd=20,
        num_blocks=blocks_a_group * len(groups),
        max_num_batched_tokens=chunk,
        enable_prefix_caching=enable_prefix_caching,
        reserve_full_isl=False,
        max_in_flight=max_in_flight,
    )
    stats = scheduler.make_stats()
    if blocks_a_group == 16 and (FULL in groups or chunk == 16):
        assert stats.num_preemptions > 0
    if enable_prefix_caching and blocks_a_group == 1000:
        assert stats.prefix_cache_hits > 0


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("groups", LAYOUTS.values(), ids=LAYOUTS)
def test_outputs_do_not_depend_on_the_block_size(groups, block_size):
    num_blocks = len(groups) * (240 // block_size) + 2
    run(groups, crowd=20, block_size=block_size, num_blocks=num_blocks, max_num_batched_tokens=16)


@pytest.mark.parametrize("share_right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("groups", LAYOUTS.values(), ids=LAYOUTS)
def test_rejected_drafts_do_not_lose_a_block_of_the_window(groups, block_size, share_right):
    scheduler = run(
        groups,
        crowd=12,
        block_size=block_size,
        num_blocks=len(groups) * 400 // block_size,
        drafter=GroupedDrafter(groups, share_right=share_right),
    )
    assert scheduler.make_stats().num_draft_tokens > 0


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_long_output_runs_in_a_pool_that_holds_its_window(max_in_flight):
    groups = (sliding(8), sliding(8))
    # 25 blocks a group for the whole sequence; a step of 4 tokens and its window need 4.
    limits = make_limits(kv_cache_groups=groups, num_blocks=9, max_num_batched_tokens=4)
    scheduler, model = Scheduler(limits), GroupedModel(groups, 9, 4)
    request = add(scheduler, 20, max_tokens=80, ignore_eos=True)
    run_all(scheduler, model, max_in_flight=max_in_flight)
    prompt = request.core_request.prompt_token_ids
    assert request.output_token_ids == expected_output(groups, prompt, 80)
    assert scheduler.make_stats().num_preemptions == 0
