"""A crowded engine gives every request the output that it has alone.

The simulated model reads its tokens back through the block tables, so any mistake in a table, a hit
or a block's lifetime changes what it says.
"""

import random
from collections import deque

import pytest

from tests.scheduler_svc.factories import add, make_scheduler
from tests.scheduler_svc.sim_model import SimModel, expected_output

PREFIXES = [list(range(start, start + 17)) for start in (0, 100, 200)]


def random_prompt(rng):
    prefix = rng.choice(PREFIXES)[: rng.randrange(18)]
    return [*prefix, *(rng.randrange(900) for _ in range(rng.randrange(1, 20)))]


def run_all(scheduler, model, *, max_in_flight=2, max_steps=20_000):
    """Run to the end; the worker is one step late as if it took its time."""
    in_flight = deque()
    for _ in range(max_steps):
        if not scheduler.has_requests:
            return
        output = scheduler.schedule(0.0)
        if not output.is_empty:
            in_flight.append(output)
        if output.is_empty or len(in_flight) == max_in_flight:
            output = in_flight.popleft()
            scheduler.update_from_output(output, model.execute(output))
    raise AssertionError("requests do not finish")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 5, "max_num_seqs": 4},
        {"long_prefill_token_threshold": 3},
        {"reserve_full_isl": False},
        {"enable_chunked_prefill": False},
        {"watermark": 0.2},
        {"block_size": 1, "num_blocks": 70},
        {"block_size": 16, "num_blocks": 7},
    ],
    ids=str,
)
def test_outputs_on_a_tiny_pool_equal_outputs_alone(options):
    rng = random.Random(1)
    options = {"num_blocks": 19, "max_model_len": 64} | options
    scheduler = make_scheduler(**options, eos_token_ids=frozenset())
    model = SimModel(scheduler.limits.num_blocks, scheduler.limits.block_size)
    requests = [
        add(scheduler, random_prompt(rng), max_tokens=rng.randrange(1, 25)) for _ in range(60)
    ]
    run_all(scheduler, model)
    for request in requests:
        prompt = request.core_request.prompt_token_ids
        max_tokens = request.sampling_params.max_tokens
        assert request.output_token_ids == expected_output(prompt, max_tokens)


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("chunk", [16, 64, 4096])
@pytest.mark.parametrize("num_blocks", [19, 1000])
@pytest.mark.parametrize("crowd", [1, 33])
def test_outputs_are_the_same_whatever_the_engine_does(
    max_in_flight, enable_prefix_caching, chunk, num_blocks, crowd
):
    rng = random.Random(4)
    scheduler = make_scheduler(
        num_blocks=num_blocks,
        max_model_len=64,
        max_num_seqs=33,
        max_num_batched_tokens=chunk,
        enable_prefix_caching=enable_prefix_caching,
    )
    model = SimModel(num_blocks, scheduler.limits.block_size)
    eos = scheduler.limits.eos_token_ids
    requests = [add(scheduler, random_prompt(rng), max_tokens=20) for _ in range(crowd)]
    run_all(scheduler, model, max_in_flight=max_in_flight)
    assert (scheduler.make_stats().num_preemptions > 0) == (num_blocks == 19 and crowd == 33)
    for request in requests:
        prompt = request.core_request.prompt_token_ids
        assert request.output_token_ids == expected_output(prompt, 20, eos)


def test_a_tiny_pool_is_really_crowded():
    rng = random.Random(1)
    scheduler = make_scheduler(num_blocks=19, max_model_len=64)
    model = SimModel(19, 4)
    for _ in range(60):
        add(scheduler, random_prompt(rng), max_tokens=24)
    run_all(scheduler, model)
    stats = scheduler.make_stats()
    assert stats.num_preemptions > 10
    assert stats.prefix_cache_hits > 50


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_two_thousand_requests_are_exact(max_in_flight):
    rng = random.Random(2)
    scheduler = make_scheduler(
        num_blocks=80, max_model_len=64, max_num_seqs=64, max_num_batched_tokens=96
    )
    model = SimModel(80, 4)
    eos = scheduler.limits.eos_token_ids
    requests = [add(scheduler, random_prompt(rng), max_tokens=12) for _ in range(2000)]
    run_all(scheduler, model, max_in_flight=max_in_flight)
    scheduler.check_integrity()
    assert scheduler.make_stats().num_preemptions > 0
    wrong = [
        request.request_id
        for request in requests
        if request.output_token_ids
        != expected_output(request.core_request.prompt_token_ids, 12, eos)
    ]
    assert wrong == []


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_outputs_are_exact_across_lost_workers(max_in_flight):
    rng = random.Random(3)
    scheduler = make_scheduler(num_blocks=30, max_model_len=64, eos_token_ids=frozenset())
    model = SimModel(30, 4)
    requests = [add(scheduler, random_prompt(rng), max_tokens=20) for _ in range(30)]
    in_flight = deque()
    for number in range(2000):
        if not scheduler.has_requests:
            break
        while len(in_flight) < max_in_flight and not (output := scheduler.schedule(0.0)).is_empty:
            in_flight.append(output)
        if number % 7 == 6:
            in_flight.clear()
            model.lose_everything()
            scheduler.forget_worker()
        else:
            output = in_flight.popleft()
            scheduler.update_from_output(output, model.execute(output))
    assert not scheduler.has_requests
    for request in requests:
        assert request.output_token_ids == expected_output(
            request.core_request.prompt_token_ids, 20
        )
