"""Metrics after a fixed workload are exact: one replica, two, and one whose worker is lost.

R requests with prompts of P tokens and outputs of M tokens, one after another, give R first tokens,
R(M-1) times between tokens, and R*M steps with R(P+M) tokens in all.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.services import Samples, Services, running_stack, samples_of, total_of

R, P, M = 6, 21, 9


def prompt(number: int) -> list[int]:
    """P tokens that no other prompt begins with."""
    return [1000 + number * P + position for position in range(P)]


async def run_workload(services: Services) -> Samples:
    for number in range(R):
        await services.complete(prompt(number), M)
    await services.until("pagewire:iteration_tokens_total_sum", R * (P + M))
    return await services.exposition()


def check_requests(samples: Samples, num_requests: int, prompt_len: int, output_len: int) -> None:
    """What the gateway counts of requests."""
    expected = {
        "time_to_first_token_seconds_count": num_requests,
        "inter_token_latency_seconds_count": num_requests * (output_len - 1),
        "request_time_per_output_token_seconds_count": num_requests,
        "e2e_request_latency_seconds_count": num_requests,
        "request_queue_time_seconds_count": num_requests,
        "request_prefill_time_seconds_count": num_requests,
        "request_decode_time_seconds_count": num_requests,
        "request_inference_time_seconds_count": num_requests,
        "request_prompt_tokens_sum": num_requests * prompt_len,
        "request_prompt_tokens_count": num_requests,
        "request_generation_tokens_sum": num_requests * output_len,
        "request_max_num_generation_tokens_sum": num_requests * output_len,
        "request_params_max_tokens_sum": num_requests * output_len,
        "request_params_n_sum": num_requests,
        "prompt_tokens_total": num_requests * prompt_len,
        "prompt_tokens_by_source_total": num_requests * prompt_len,
        "generation_tokens_total": num_requests * output_len,
        "request_success_total": num_requests,
    }
    counted = {name: total_of(samples, f"pagewire:{name}") for name in expected}
    assert counted == expected
    assert total_of(samples, "pagewire:request_success_total", "length") == num_requests


@pytest.mark.parametrize("num_replicas", [1, 2])
async def test_one_after_another_they_are_exact(num_replicas: int) -> None:
    async with running_stack(num_replicas) as services:
        samples = await run_workload(services)
        check_requests(samples, R, P, M)
        assert total_of(samples, "pagewire:iteration_tokens_total_count") == R * M
        assert total_of(samples, "pagewire:iteration_tokens_total_sum") == R * (P + M)
        assert total_of(samples, "pagewire:prefix_cache_queries_total") == R * P
        own = [samples_of(registry) for registry in services.registries["scheduler"]]
        for name in ("iteration_tokens_total_count", "iteration_tokens_total_sum"):
            whole = sum(total_of(each, f"pagewire:{name}") for each in own)
            assert whole == total_of(samples, f"pagewire:{name}")
        assert sum(total_of(each, "pagewire:engine_generation_tokens_total") for each in own) == (
            R * M
        )


async def test_a_prefix_that_is_cached_is_told_apart() -> None:
    async with running_stack() as services:
        await services.complete(prompt(0), M)
        await services.complete(prompt(0), M)
        samples = await services.exposition()
        # One block of 16 tokens is full.
        assert total_of(samples, "pagewire:prompt_tokens_cached_total") == 16
        by_source = "pagewire:prompt_tokens_by_source_total"
        assert total_of(samples, by_source, "local_cache_hit") == 16
        assert total_of(samples, by_source, "local_compute") == 2 * P - 16
        assert total_of(samples, "pagewire:request_prefill_kv_computed_tokens_sum") == 2 * P - 16


async def test_outputs_of_one_prompt_are_requests_of_their_own() -> None:
    async with running_stack() as services:
        await services.complete(prompt(0), M, n=3)
        samples = await services.exposition()
        assert total_of(samples, "pagewire:request_success_total") == 3
        assert total_of(samples, "pagewire:request_params_n_sum") == 3
        assert total_of(samples, "pagewire:request_params_n_count") == 1
        assert total_of(samples, "pagewire:request_max_num_generation_tokens_sum") == M
        assert total_of(samples, "pagewire:request_generation_tokens_sum") == 3 * M


async def test_a_worker_that_is_lost_has_nothing_counted_twice() -> None:
    num_requests, output_len = 4, 60
    async with running_stack(num_workers=2, step_time_us=5000) as services:
        tasks = [
            asyncio.create_task(services.complete(prompt(number), output_len))
            for number in range(num_requests)
        ]
        await until_running(services, num_requests)
        assert not any(task.done() for task in tasks)
        await services.replicas[0].claimed.server.stop(0)
        await asyncio.gather(*tasks)
        await services.until("pagewire:workers_lost_total", 1)
        num_tokens = num_requests * (P + output_len)
        await services.until("pagewire:iteration_tokens_total_sum", num_tokens)
        samples = await services.exposition()
    check_requests(samples, num_requests, P, output_len)


async def test_a_replica_that_is_gone_takes_its_engine_along_and_its_requests_go_on() -> None:
    num_requests, output_len = 4, 60
    async with running_stack(num_replicas=2, step_time_us=5000) as services:
        tasks = [
            asyncio.create_task(services.complete(prompt(number), output_len))
            for number in range(num_requests)
        ]
        await until_running(services, num_requests)
        await services.replicas[0].scheduler.server.stop(0)
        await asyncio.gather(*tasks)
        await services.until_gone("pagewire:engine_ready", engine="0")
        samples = await services.exposition()
    check_requests(samples, num_requests, P, output_len)
    assert not any("engine_ready" in key and "'0'" in key for key in samples)
    assert total_of(samples, "pagewire:gateway_scheduler_up") == 1


async def until_running(services: Services, num_requests: int) -> None:
    """Wait until every request has its first token."""
    await services.until("pagewire:time_to_first_token_seconds_count", num_requests)


async def test_a_client_that_leaves_is_an_abort_and_in_no_histogram() -> None:
    async with running_stack(step_time_us=5000) as services:
        body = {"prompt": prompt(0), "max_tokens": 200, "ignore_eos": True, "stream": True}
        async with services.http.stream("POST", "/v1/completions", json=body):
            await until_running(services, 1)
        await services.until("pagewire:request_success_total", 1)
        samples = await services.exposition()
        assert total_of(samples, "pagewire:request_success_total", "abort") == 1
        assert total_of(samples, "pagewire:e2e_request_latency_seconds_count") == 0
        assert total_of(samples, "pagewire:time_to_first_token_seconds_count") == 1
