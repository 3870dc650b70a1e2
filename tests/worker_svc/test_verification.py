"""With drafts, whatever they are, a request gets the tokens that single steps give it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.sampling_params import SamplingParams, ThinkingBudget
from tests.worker_svc.harness import VOCABULARY
from tests.worker_svc.runner_factories import make_model_runner, make_prompts, make_sim_runner
from tests.worker_svc.step_driver import GREEDY, DriverRequest, Propose, StepDriver
from worker_svc.model_runner import ModelRunner
from worker_svc.sim.oracle import expected_tokens
from worker_svc.step import NewRequest, Runner, SchedulerOutput

LENGTHS = (1, 7, 16, 33, 70)
MAX_TOKENS = 20
NUM_DRAFTS = 4
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=17)
# The end is forced over and over, since the sampled tokens hold starts, too.
THINKING = SamplingParams(
    temperature=1.5, seed=4, thinking_budget=ThinkingBudget(3, (150,), (151, 152, 153), 1)
)


@pytest.fixture(scope="module")
def model_runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    return make_model_runner(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["torch", "sim"])
def runner(request: pytest.FixtureRequest, model_runner: ModelRunner, tmp_path: Path) -> Runner:
    return model_runner if request.param == "torch" else make_sim_runner(tmp_path)


def run(
    runner: Runner,
    params: SamplingParams,
    propose_from: Callable[[Sequence[int]], Propose] | None = None,
    expected: Sequence[Sequence[int]] = (),
    **driver_options: Any,
) -> tuple[list[DriverRequest], StepDriver]:
    """All prompts in one batch; drafts are made from what is expected of the request."""
    driver = StepDriver(runner, num_blocks=256, block_size=8, **driver_options)
    requests = [
        driver.add(
            prompt,
            params,
            MAX_TOKENS,
            propose=None if propose_from is None else propose_from(expected[place]),
        )
        for place, prompt in enumerate(make_prompts(LENGTHS))
    ]
    driver.run()
    return requests, driver


def outputs_of(requests: Sequence[DriverRequest]) -> list[list[int]]:
    return [request.output_token_ids for request in requests]


def right(expected: Sequence[int]) -> Propose:
    return lambda output: expected[len(output) : len(output) + NUM_DRAFTS]


def wrong(expected: Sequence[int]) -> Propose:
    return lambda output: [
        (token_id + 1) % 160 for token_id in expected[len(output) : len(output) + NUM_DRAFTS]
    ]


def half_right(expected: Sequence[int]) -> Propose:
    return lambda output: [*right(expected)(output)[:2], *wrong(expected)(output)[2:]]


def mixed(expected: Sequence[int]) -> Propose:
    """Any number of drafts, each right or not; equal for equal outputs."""

    def propose(output: Sequence[int]) -> list[int]:
        rng = random.Random(f"{expected}{len(output)}")
        following = expected[len(output) : len(output) + rng.randrange(NUM_DRAFTS + 1)]
        return [token_id if rng.random() < 0.7 else (token_id + 1) % 160 for token_id in following]

    return propose


DRAFTS = {"right": right, "wrong": wrong, "half right": half_right, "mixed": mixed}
PARAMS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "penalties": SamplingParams(
        temperature=0.0, repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=0.7
    ),
    "sampled with penalties": SamplingParams(
        temperature=1.0, seed=5, top_k=20, frequency_penalty=1.5
    ),
    "bias": SamplingParams(temperature=0.0, logit_bias=((5, 4.0), (9, -100.0))),
    "logprobs": SamplingParams(temperature=0.9, seed=8, logprobs=3),
    "thinking": THINKING,
    "named logprobs": SamplingParams(temperature=0.9, seed=8, logprob_token_ids=(150, 3, 77)),
}


@pytest.mark.parametrize("drafts", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_drafts_change_no_token(
    runner: Runner, params: SamplingParams, drafts: Callable[[Sequence[int]], Propose]
) -> None:
    plain = outputs_of(run(runner, params)[0])
    assert outputs_of(run(runner, params, drafts, plain)[0]) == plain
    assert len({token_id for output in plain for token_id in output}) > 5


def test_accepted_drafts_save_steps_and_rejected_ones_cost_none(runner: Runner) -> None:
    plain_requests, plain = run(runner, GREEDY)
    expected = outputs_of(plain_requests)
    steps = {name: run(runner, GREEDY, drafts, expected)[1] for name, drafts in DRAFTS.items()}
    assert plain.num_steps == steps["wrong"].num_steps == MAX_TOKENS
    # Each step gives the accepted drafts and one token more.
    assert steps["right"].num_steps == MAX_TOKENS / (NUM_DRAFTS + 1)
    assert steps["half right"].num_steps == 7


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_drafts_run_beside_chunked_prefills(runner: Runner, chunk: int) -> None:
    plain = outputs_of(run(runner, SAMPLED)[0])
    assert outputs_of(run(runner, SAMPLED, mixed, plain, chunk=chunk)[0]) == plain


@pytest.mark.parametrize("params", [SAMPLED, THINKING], ids=["sampled", "thinking"])
@pytest.mark.parametrize("preempt_after", [4, 6])
def test_a_request_resumed_after_drafts_goes_on(
    runner: Runner, params: SamplingParams, preempt_after: int
) -> None:
    plain = outputs_of(run(runner, params)[0])
    driver = StepDriver(runner, num_blocks=256, block_size=8)
    requests = [
        driver.add(prompt, params, MAX_TOKENS, preempt_after=preempt_after, propose=mixed(expected))
        for prompt, expected in zip(make_prompts(LENGTHS), plain, strict=True)
    ]
    driver.run()
    assert outputs_of(requests) == plain


def test_what_depends_on_the_output_so_far_sees_the_drafts(model_runner: ModelRunner) -> None:
    """Bad words and min_tokens, made from what the model would say, with right and wrong drafts."""
    unbound = outputs_of(run(model_runner, GREEDY)[0])
    # Words of two tokens, the first of which must have been seen; stops that would come too early.
    words = tuple((output[i], output[i + 1]) for output in unbound for i in (2, 7, 11))
    stops = tuple(output[4] for output in unbound)
    params = SamplingParams(
        temperature=0.0, bad_words_token_ids=words, min_tokens=9, stop_token_ids=stops
    )
    plain = outputs_of(run(model_runner, params)[0])
    assert all(output != other for output, other in zip(plain, unbound, strict=True))
    for drafts in DRAFTS.values():
        assert outputs_of(run(model_runner, params, drafts, plain)[0]) == plain
    # Drafts of what the unbound model says run into the forbidden.
    assert outputs_of(run(model_runner, params, right, unbound)[0]) == plain


@pytest.mark.parametrize("name", ["logprobs", "named logprobs"])
def test_every_sampled_token_has_its_logprobs(model_runner: ModelRunner, name: str) -> None:
    params = PARAMS[name]
    plain, _ = run(model_runner, params)
    drafted, _ = run(model_runner, params, half_right, outputs_of(plain))
    for request, reference in zip(drafted, plain, strict=True):
        assert len(request.logprobs) == MAX_TOKENS
        for found, expected in zip(request.logprobs, reference.logprobs, strict=True):
            assert found == pytest.approx(expected, abs=1e-4)
            assert len(found) >= 3
            assert found.keys() >= set(params.logprob_token_ids)


@pytest.mark.parametrize("params", [SAMPLED, THINKING], ids=["sampled", "thinking"])
def test_simulated_tokens_with_drafts_are_the_oracles(
    tmp_path: Path, params: SamplingParams
) -> None:
    prompts = make_prompts(LENGTHS)
    expected = [expected_tokens(prompt, params, MAX_TOKENS, VOCABULARY) for prompt in prompts]
    assert outputs_of(run(make_sim_runner(tmp_path), params, mixed, expected)[0]) == expected


def test_the_end_of_thinking_is_forced_behind_right_and_wrong_drafts(runner: Runner) -> None:
    plain = outputs_of(run(runner, THINKING)[0])
    for drafts in DRAFTS.values():
        for output in outputs_of(run(runner, THINKING, drafts, plain)[0]):
            assert output[2:5] == [151, 152, 153]


def test_simulated_drafts_are_read_back_through_the_block_table(tmp_path: Path) -> None:
    runner = make_sim_runner(tmp_path)
    runner.allocate_kv_cache(16, 4)
    prompt = make_prompts([4])[0]
    expected = expected_tokens(prompt, GREEDY, 4, VOCABULARY)
    new = [NewRequest(1, "right", prompt, [], GREEDY, 0, [3])]
    runner.execute(SchedulerOutput(1, new, [1], [4]))
    # A neighbour is given the block that the drafts of the first are written to.
    thief = NewRequest(2, "thief", [9, 8, 7, 6], [], GREEDY, 0, [5])
    step = SchedulerOutput(2, [thief], [1, 2], [4, 4], [1, 0], [5], (), (), [3, 0], expected[1:])
    output = runner.execute(step)
    assert list(output.sampled_token_ids[: output.num_sampled[0]]) != expected[1:]


class TestNaN:
    """A token id whose embedding is NaN, in drafts."""

    @pytest.fixture
    def poisoned(self, tmp_path: Path) -> tuple[ModelRunner, list[list[int]], int]:
        runner = make_model_runner(tmp_path)
        plain = outputs_of(run(runner, GREEDY)[0])
        seen = {token_id for tokens in (*plain, *make_prompts(LENGTHS)) for token_id in tokens}
        token_id = min(set(range(3, 160)) - seen)
        assert runner._loaded is not None
        runner._loaded.model.embed_tokens.data[token_id] = torch.nan
        return runner, plain, token_id

    def test_behind_a_rejected_draft_it_harms_nobody(
        self, poisoned: tuple[ModelRunner, list[list[int]], int]
    ) -> None:
        runner, plain, token_id = poisoned

        def spoiled(expected: Sequence[int]) -> Propose:
            return lambda output: [*expected[len(output) : len(output) + 1], token_id, token_id]

        requests, driver = run(runner, GREEDY, spoiled, plain)
        assert outputs_of(requests) == plain
        assert driver.num_steps == MAX_TOKENS / 2

    def test_at_a_later_place_the_tokens_before_it_are_given(
        self, poisoned: tuple[ModelRunner, list[list[int]], int]
    ) -> None:
        runner, plain, token_id = poisoned
        prompts = make_prompts(LENGTHS)
        driver = StepDriver(runner, num_blocks=256, block_size=8)
        # It is not drawn by itself: a bias makes it the token that follows.
        biased = SamplingParams(temperature=0.0, logit_bias=((token_id, 100.0),))
        good = driver.add(prompts[3], GREEDY, MAX_TOKENS)
        driver.step()
        bad = driver.add(prompts[1], biased, MAX_TOKENS, propose=lambda output: [token_id] * 3)
        output = driver.step()
        assert (bad.failure, bad.output_token_ids) == ("NAN_LOGITS", [token_id])
        assert [row.handle for row in output.failed] == [bad.handle]
        driver.run()
        assert good.output_token_ids == plain[3]
