import statistics
from dataclasses import replace

import pytest

from scheduler_svc.simulate.workload import WorkloadConfig, generate

LENGTH = 8192


def test_the_same_seed_gives_the_same_requests():
    config = WorkloadConfig(num_requests=50, num_prefix_groups=3)
    first = list(generate(config, LENGTH))
    assert first == list(generate(config, LENGTH))
    assert first != list(generate(replace(config, seed=1), LENGTH))


@pytest.mark.parametrize("distribution", ["fixed", "uniform", "exponential", "lognormal"])
def test_lengths_have_the_mean_that_was_asked_for(distribution):
    config = WorkloadConfig(
        num_requests=20_000, prompt_len=100, output_len=20, length_distribution=distribution
    )
    requests = list(generate(config, LENGTH))
    prompts = [request.num_prompt_tokens for request in requests]
    outputs = [request.num_output_tokens for request in requests]
    assert statistics.mean(prompts) == pytest.approx(100, rel=0.05)
    assert statistics.mean(outputs) == pytest.approx(20, rel=0.05)


def test_arrivals_come_at_the_rate():
    requests = list(generate(WorkloadConfig(num_requests=20_000, request_rate=50.0), LENGTH))
    assert requests[-1].arrival_time_s == pytest.approx(400, rel=0.05)


def test_a_rate_of_zero_brings_all_at_once():
    requests = generate(WorkloadConfig(num_requests=10, request_rate=0.0), LENGTH)
    assert {request.arrival_time_s for request in requests} == {0.0}


def test_a_prefix_is_shared_within_each_group():
    config = WorkloadConfig(num_requests=200, num_prefix_groups=3, prefix_len=64, prompt_len=10)
    requests = list(generate(config, LENGTH))
    assert {request.shared_prefix_id for request in requests} == {"0", "1", "2"}
    assert all(request.num_prompt_tokens > 64 for request in requests)


def test_requests_fit_into_the_context():
    config = WorkloadConfig(num_requests=500, prompt_len=100, output_len=100)
    for request in generate(config, 128):
        assert request.num_prompt_tokens >= 1 and request.num_output_tokens >= 1
        assert request.num_prompt_tokens + request.num_output_tokens <= 128
