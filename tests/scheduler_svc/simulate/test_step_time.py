import pytest

from scheduler_svc.simulate.hardware import GPUS, HardwareConfig
from scheduler_svc.simulate.step_time import Roofline, step_work
from tests.scheduler_svc.factories import add, make_scheduler

# One parameter-layer of everything, so that a figure is a figure of the GPU.
TINY = "1e9,1,1,1,1"


def scheduled(prompt_lens, **limits):
    scheduler = make_scheduler(**({"max_num_batched_tokens": 4096, "num_blocks": 2000} | limits))
    for prompt_len in prompt_lens:
        add(scheduler, prompt_len)
    return scheduler.schedule(0.0)


def ideal(**overrides):
    values = {"flops_efficiency": 1.0, "bandwidth_efficiency": 1.0, "step_overhead_us": 0.0}
    return HardwareConfig(**(values | {"sim_model": TINY} | overrides))


def test_pairs_are_those_under_the_causal_mask():
    output = scheduled([5, 9])
    work = step_work(output.requests, output.num_scheduled_tokens)
    assert work.num_tokens == work.num_context_tokens == 14
    assert work.num_pairs == sum(range(1, 6)) + sum(range(1, 10))


def test_pairs_of_a_later_chunk_reach_back_to_the_start():
    output = scheduled([9], max_num_batched_tokens=5)
    output.requests[0].num_computed_tokens = 9  # as after a second chunk of 4
    work = step_work(output.requests, [4])
    assert work.num_pairs == 6 + 7 + 8 + 9


def test_a_step_of_few_tokens_takes_the_time_to_read_the_weights():
    seconds = Roofline(ideal(gpu="h100")).seconds(scheduled([1]))
    assert seconds == pytest.approx(2e9 / GPUS["h100"].bytes_per_s, rel=1e-3)


def test_a_step_of_many_tokens_takes_the_time_to_compute():
    output = scheduled([200] * 8)
    seconds = Roofline(ideal(gpu="l4")).seconds(output)
    assert seconds == pytest.approx(2e9 * 1600 / GPUS["l4"].flops_per_s, rel=1e-3)


def test_a_longer_context_takes_longer():
    wide = ideal(sim_model="1e9,32,32,8,128")
    short, long = (Roofline(wide).seconds(scheduled([length])) for length in (50, 200))
    assert long > short


def test_two_gpus_take_half_the_time():
    output = scheduled([100])
    one, two = (Roofline(ideal(num_gpus=number)).seconds(output) for number in (1, 2))
    assert two == pytest.approx(one / 2)


def test_the_overhead_comes_on_top():
    output = scheduled([1])
    without = Roofline(ideal()).seconds(output)
    assert Roofline(ideal(step_overhead_us=300.0)).seconds(output) == pytest.approx(without + 3e-4)


def test_kv_bytes_of_a_token_are_those_of_the_model():
    # Llama 3.1 8B: keys and values of 32 layers x 8 heads x 128 in two bytes.
    assert Roofline(HardwareConfig()).kv_bytes_per_token == 131_072
