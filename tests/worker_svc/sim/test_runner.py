"""The simulated runner against the oracle, and with everything that it has to notice."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pagewire.engine_config import EngineConfig, ModelConfig
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.harness import (
    BLOCK_SIZE,
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    VOCABULARY,
    sim_config,
    write_model,
)
from worker_svc.sim.oracle import expected_output, expected_tokens
from worker_svc.sim.runner import SimRunner
from worker_svc.step import EMPTY_MASK, FailedRow, ModelRunnerOutput, NewRequest, SchedulerOutput

GREEDY = SamplingParams(temperature=0.0)
PROMPT = list(range(300, 311))
BLOCKS = [5, 2, 8, 11, 1]


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return sim_config(write_model(tmp_path))


@pytest.fixture
def runner(config: EngineConfig) -> SimRunner:
    runner = SimRunner(config)
    runner.load(lambda stage, fraction: None)
    runner.allocate_kv_cache(4096, BLOCK_SIZE)
    return runner


def request(handle: int = 0, **fields: object) -> NewRequest:
    values: dict[str, object] = {
        "request_id": f"r{handle}",
        "prompt_token_ids": PROMPT,
        "output_token_ids": [],
        "sampling": GREEDY,
        "num_computed_tokens": 0,
        "block_ids": BLOCKS,
    }
    return NewRequest(handle, **(values | fields))  # type: ignore[arg-type]


class Steps:
    """Numbers the steps of a test."""

    def __init__(self, runner: SimRunner) -> None:
        self.runner = runner
        self.step = 0

    def run(self, scheduled: dict[int, int], **fields: object) -> ModelRunnerOutput:
        self.step += 1
        columns = {"handles": list(scheduled), "num_scheduled_tokens": list(scheduled.values())}
        return self.runner.execute(SchedulerOutput(self.step, **(columns | fields)))  # type: ignore[arg-type]

    def decode(self, handle: int, num_tokens: int) -> list[int]:
        return [self.run({handle: 1}).sampled_token_ids[0] for _ in range(num_tokens)]


@pytest.fixture
def steps(runner: SimRunner) -> Steps:
    return Steps(runner)


def test_load_reads_the_models_shape(config: EngineConfig) -> None:
    info = SimRunner(config).load(lambda stage, fraction: None)
    assert (info.vocab_size, info.max_model_len) == (VOCAB_SIZE, 512)
    assert info.eos_token_ids == (EOS_TOKEN_ID,)


def test_a_context_longer_than_the_models_is_refused(config: EngineConfig) -> None:
    model = ModelConfig(model=config.model.model, max_model_len=513)
    with pytest.raises(ValueError, match="--max-model-len"):
        SimRunner(replace(config, model=model)).load(lambda stage, fraction: None)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.7, seed=99)])
def test_tokens_are_the_oracles(steps: Steps, params: SamplingParams) -> None:
    first = steps.run({0: 11}, new_requests=[request(sampling=params)]).sampled_token_ids
    output = [*first, *steps.decode(0, 8)]
    assert output == expected_tokens(PROMPT, params, 9, VOCABULARY)


def test_a_chunked_prefill_samples_only_at_its_end(steps: Steps) -> None:
    assert steps.run({0: 4}, new_requests=[request()]).num_sampled == [0]
    assert steps.run({0: 6}).num_sampled == [0]
    assert steps.run({0: 1}).sampled_token_ids == expected_tokens(PROMPT, GREEDY, 1, VOCABULARY)


def test_appended_blocks_continue_the_table(steps: Steps) -> None:
    output = list(
        steps.run({0: 11}, new_requests=[request(block_ids=BLOCKS[:3])]).sampled_token_ids
    )
    output += steps.run({0: 1}).sampled_token_ids
    output += steps.run({0: 1}, new_block_counts=[2], new_block_ids=[20, 30]).sampled_token_ids
    output += steps.decode(0, 6)
    assert output == expected_tokens(PROMPT, GREEDY, 9, VOCABULARY)


def test_a_prefix_hit_gives_the_same_tokens(steps: Steps) -> None:
    steps.run({0: 11}, new_requests=[request()])
    hit = request(1, block_ids=[*BLOCKS[:2], 30, 31], num_computed_tokens=8)
    sampled = steps.run({1: 3}, new_requests=[hit]).sampled_token_ids
    assert sampled == expected_tokens(PROMPT, GREEDY, 1, VOCABULARY)


def test_a_false_prefix_hit_changes_tokens(steps: Steps) -> None:
    other = [9, *PROMPT[1:]]  # its second block has the same tokens, after other ones
    steps.run({0: 11}, new_requests=[request(prompt_token_ids=other)])
    hit = request(1, block_ids=[20, BLOCKS[1], 30], num_computed_tokens=8)
    steps.run({2: 4}, new_requests=[request(2, block_ids=[20])])
    sampled = steps.run({1: 3}, new_requests=[hit]).sampled_token_ids
    assert sampled != expected_tokens(PROMPT, GREEDY, 1, VOCABULARY)


@pytest.mark.parametrize("block_ids", [[2, 5, 8, 11, 1], [5, 2, 9, 11, 1], [0, 2, 8, 11, 1]])
def test_a_corrupted_block_table_changes_tokens(steps: Steps, block_ids: list[int]) -> None:
    steps.run({0: 11}, new_requests=[request()])
    corrupted = request(1, block_ids=block_ids, num_computed_tokens=10)
    sampled = steps.run({1: 1}, new_requests=[corrupted]).sampled_token_ids
    assert sampled != expected_tokens(PROMPT, GREEDY, 1, VOCABULARY)


def test_a_block_given_away_too_early_changes_tokens(steps: Steps) -> None:
    steps.run({0: 11}, new_requests=[request()])
    thief = request(1, prompt_token_ids=[400], block_ids=[BLOCKS[1]])
    output = steps.run({0: 1, 1: 1}, new_requests=[thief])
    assert output.sampled_token_ids[0] != expected_tokens(PROMPT, GREEDY, 2, VOCABULARY)[1]


def test_a_resumed_request_goes_on_with_its_draws(steps: Steps) -> None:
    params = SamplingParams(temperature=1.0, seed=5)
    expected = expected_tokens(PROMPT, params, 6, VOCABULARY)
    steps.run({0: 11}, new_requests=[request(sampling=params)])
    resumed = request(0, sampling=params, output_token_ids=expected[:3], block_ids=[40, 41, 42, 43])
    output = list(
        steps.run({0: 14}, new_requests=[resumed], preempted_handles=[0]).sampled_token_ids
    )
    assert [*expected[:3], *output, *steps.decode(0, 2)] == expected


def test_two_thousand_requests_of_random_shape_equal_the_oracle(steps: Steps) -> None:
    rng = random.Random(3)
    blocks = list(range(1, 4096))
    rng.shuffle(blocks)
    equal: dict[int, bool] = {}
    for first in range(0, 2000, 100):
        batch = {}
        for handle in range(first, first + 100):
            prompt = rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 60))
            params = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=handle)
            table = [blocks[(40 * (handle % 100) + i) % 4095] for i in range(20)]
            batch[handle] = request(
                handle, prompt_token_ids=prompt, sampling=params, block_ids=table
            )
        outputs = {handle: list[int]() for handle in batch}
        scheduled = {handle: len(new.prompt_token_ids) for handle, new in batch.items()}
        fields: dict[str, object] = {"new_requests": list(batch.values())}
        for _ in range(5):
            output = steps.run(scheduled, **fields)
            for handle, token_id in zip(output.handles, output.sampled_token_ids, strict=True):
                outputs[handle].append(token_id)
            scheduled, fields = dict.fromkeys(batch, 1), {}
        steps.run({}, finished_handles=list(batch))
        equal |= {
            handle: expected_tokens(new.prompt_token_ids, new.sampling, 5, VOCABULARY)
            == outputs[handle]
            for handle, new in batch.items()
        }
    assert len(equal) == 2000 and all(equal.values())


def test_logprobs_are_well_formed_where_asked_for(steps: Steps) -> None:
    asked = request(0, sampling=SamplingParams(temperature=0.0, logprobs=2))
    plain = request(1, block_ids=[20, 21, 22])
    output = steps.run({1: 11, 0: 11}, new_requests=[asked, plain])
    assert output.logprobs is not None
    assert output.logprobs.counts == [0, 3]
    assert output.logprobs.token_ids[0] == output.sampled_token_ids[1]
    assert len(output.logprobs.logprobs) == 3
    assert output.logprobs.sampled_ranks == [0, 1]


def test_logprobs_of_named_tokens_come_in_their_order(steps: Steps) -> None:
    params = SamplingParams(temperature=0.0, logprob_token_ids=(500, 4))
    output = steps.run({0: 11}, new_requests=[request(0, sampling=params)])
    assert output.logprobs is not None
    assert output.logprobs.counts == [3]
    assert output.logprobs.token_ids == [*output.sampled_token_ids, 500, 4]


def test_a_step_takes_the_time_that_it_simulates(config: EngineConfig) -> None:
    runner = SimRunner(sim_config(Path(config.model.model), sim_step_time_us=20_000))
    runner.load(lambda stage, fraction: None)
    runner.allocate_kv_cache(64, BLOCK_SIZE)
    begin_ns = time.monotonic_ns()
    Steps(runner).run({0: 11}, new_requests=[request()])
    assert time.monotonic_ns() - begin_ns >= 20_000_000


def test_steps_without_a_kv_cache_are_refused(runner: SimRunner) -> None:
    runner.reset()
    with pytest.raises(RuntimeError, match="allocate_kv_cache"):
        runner.execute(SchedulerOutput(1))


def test_the_oracles_output_stops_where_its_parameters_say() -> None:
    tokens = expected_tokens(PROMPT, GREEDY, 20, VOCABULARY)
    stop = SamplingParams(temperature=0.0, stop_token_ids=(tokens[4],))
    assert expected_output(PROMPT, stop, 20, VOCABULARY) == tokens[:5]
    limit = SamplingParams(temperature=0.0, max_tokens=3)
    assert expected_output(PROMPT, limit, 20, VOCABULARY) == tokens[:3]


def test_the_oracles_output_ends_at_the_end_of_sequence() -> None:
    prompts = ([i] for i in range(300, 1000))
    ended = next(
        output
        for prompt in prompts
        if len(output := expected_output(prompt, GREEDY, 100, VOCABULARY)) < 100
    )
    assert ended[-1] == EOS_TOKEN_ID


def test_a_row_without_any_allowed_token_fails_alone_and_again(runner: SimRunner) -> None:
    params = replace(GREEDY, allowed_token_ids=(EOS_TOKEN_ID,), min_tokens=2)
    bad = NewRequest(1, "bad", PROMPT, [], params, 0, [1, 2, 3])
    good = NewRequest(2, "good", PROMPT, [], GREEDY, 0, [4, 5, 6])
    sizes = [len(PROMPT)] * 2
    first = runner.execute(SchedulerOutput(1, [bad, good], [1, 2], sizes))
    second = runner.execute(SchedulerOutput(2, (), [1, 2], [1, 1]))
    for output in (first, second):
        assert output.failed == [FailedRow(1, EMPTY_MASK)]
        assert list(output.num_sampled) == [0, 1]
