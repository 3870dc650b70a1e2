"""What a step does under grammar masks, on both runners, with drafts and without."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pagewire.sampling_params import SamplingParams
from tests.worker_svc.harness import VOCAB_SIZE, VOCABULARY, sim_config, write_model
from tests.worker_svc.runner_factories import (
    TORCH_VOCAB_SIZE,
    bitmask,
    make_model_runner,
    make_prompts,
    make_sim_runner,
)
from tests.worker_svc.step_driver import GREEDY, DriverRequest, MaskOf, Propose, StepDriver
from worker_svc.grammar_masks import Bitmasks, GrammarMasks
from worker_svc.model_runner import ModelRunner
from worker_svc.sim.oracle import expected_tokens
from worker_svc.sim.runner import SimRunner
from worker_svc.step import EMPTY_MASK, FailedRow, NewRequest, Runner, SchedulerOutput

LENGTHS = (1, 7, 33)
MAX_TOKENS = 15
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=17)


@pytest.fixture(scope="module")
def model_runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    return make_model_runner(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["torch", "sim"])
def runner(request: pytest.FixtureRequest, model_runner: ModelRunner, tmp_path: Path) -> Runner:
    return model_runner if request.param == "torch" else make_sim_runner(tmp_path)


def vocab_size_of(runner: Runner) -> int:
    return TORCH_VOCAB_SIZE if isinstance(runner, ModelRunner) else VOCAB_SIZE


def allowed_after(output: Sequence[int], vocab_size: int) -> list[int]:
    """A grammar of sorts: what may follow depends on how many tokens there are, and the last."""
    shift = len(output) + (output[-1] if output else 0)
    return [token_id for token_id in range(vocab_size) if (token_id + shift) % 5 == 0]


def changing_mask(vocab_size: int) -> MaskOf:
    return lambda output: bitmask(allowed_after(output, vocab_size), vocab_size)


def constant_mask(token_ids: Sequence[int], vocab_size: int) -> MaskOf:
    return lambda output: bitmask(token_ids, vocab_size)


def run(
    runner: Runner,
    params: SamplingParams,
    mask_of: MaskOf | None,
    propose_from: Callable[[int], Propose] | None = None,
) -> tuple[list[DriverRequest], StepDriver]:
    """Each prompt twice, the second time neither masked nor with drafts."""
    driver = StepDriver(runner, num_blocks=256, block_size=8)
    requests = []
    for place, prompt in enumerate(make_prompts(LENGTHS)):
        propose = None if propose_from is None else propose_from(place)
        requests.append(driver.add(prompt, params, MAX_TOKENS, propose=propose, mask_of=mask_of))
        driver.add(prompt, params, MAX_TOKENS)
    driver.run()
    return requests, driver


def outputs_of(requests: Sequence[DriverRequest]) -> list[list[int]]:
    return [request.output_token_ids for request in requests]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_only_what_the_mask_allows_is_drawn(runner: Runner, params: SamplingParams) -> None:
    vocab_size = vocab_size_of(runner)
    requests, driver = run(runner, params, changing_mask(vocab_size))
    for output in outputs_of(requests):
        assert len(output) == MAX_TOKENS
        for place, token_id in enumerate(output):
            assert token_id in allowed_after(output[:place], vocab_size)
    assert driver.num_masks_asked == driver.num_steps


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_mask_is_as_good_as_allowed_token_ids(
    model_runner: ModelRunner, params: SamplingParams
) -> None:
    allowed = [*range(3, 40), 77, 159]
    masked, _ = run(model_runner, params, constant_mask(allowed, TORCH_VOCAB_SIZE))
    listed, _ = run(model_runner, replace(params, allowed_token_ids=tuple(allowed)), None)
    assert outputs_of(masked) == outputs_of(listed)
    free, _ = run(model_runner, params, constant_mask(range(160), TORCH_VOCAB_SIZE))
    assert outputs_of(free) == outputs_of(run(model_runner, params, None)[0])
    assert outputs_of(free) != outputs_of(masked)


def test_simulated_tokens_under_a_mask_are_the_oracles(tmp_path: Path) -> None:
    mask_of = changing_mask(VOCAB_SIZE)
    for params in (GREEDY, SAMPLED, replace(SAMPLED, allowed_token_ids=tuple(range(0, 999, 2)))):
        requests, _ = run(make_sim_runner(tmp_path), params, mask_of)
        assert outputs_of(requests) == [
            expected_tokens(prompt, params, MAX_TOKENS, VOCABULARY, mask_of)
            for prompt in make_prompts(LENGTHS)
        ]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_under_a_mask_change_no_token(runner: Runner, params: SamplingParams) -> None:
    mask_of = changing_mask(vocab_size_of(runner))
    plain = outputs_of(run(runner, params, mask_of)[0])

    def right(place: int) -> Propose:
        return lambda output: plain[place][len(output) : len(output) + 4]

    def half_right(place: int) -> Propose:
        return lambda output: [*right(place)(output)[:2], 11, 12]

    for propose_from in (right, half_right):
        assert outputs_of(run(runner, params, mask_of, propose_from)[0]) == plain


def test_masks_come_before_logprobs(model_runner: ModelRunner) -> None:
    allowed = [30, 31, 32, 33]
    params = replace(GREEDY, logprobs=4)
    requests, _ = run(model_runner, params, constant_mask(allowed, TORCH_VOCAB_SIZE))
    for entry in requests[0].logprobs:
        assert set(entry) == set(allowed)
        assert math.fsum(math.exp(value) for value in entry.values()) == pytest.approx(1.0)


def test_masks_are_awaited_after_the_forward_pass(
    model_runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    loaded = model_runner._loaded
    assert loaded is not None
    compute = loaded.model.compute_logits

    def compute_logits(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden)
        order.append("logits")
        return logits

    def masks() -> GrammarMasks:
        order.append("masks")
        return one_row(1, [5, 6])

    monkeypatch.setattr(loaded.model, "compute_logits", compute_logits)
    model_runner.allocate_kv_cache(8, 8)
    step = SchedulerOutput(1, [new(1)], [1], [3], masked_handles=[1])
    [token_id] = model_runner.execute(step, masks).sampled_token_ids
    assert order == ["logits", "masks"]
    assert token_id in (5, 6)


def test_simulated_masks_are_awaited_after_the_simulated_time(tmp_path: Path) -> None:
    config = sim_config(write_model(tmp_path), sim_step_time_us=20_000)
    runner = SimRunner(config)
    runner.load(lambda stage, fraction: None)
    runner.allocate_kv_cache(8, 8)
    asked_ns = []

    def masks() -> GrammarMasks:
        asked_ns.append(time.monotonic_ns())
        return one_row(1, [300, 301], VOCAB_SIZE)

    begin_ns = time.monotonic_ns()
    runner.execute(SchedulerOutput(1, [new(1)], [1], [3], masked_handles=[1]), masks)
    assert asked_ns[0] - begin_ns >= 20_000_000


def new(handle: int, params: SamplingParams = GREEDY) -> NewRequest:
    return NewRequest(handle, f"r{handle}", [7, 8, 9], [], params, 0, [2 * handle])


def one_row(handle: int, token_ids: Sequence[int], vocab_size: int = 160) -> GrammarMasks:
    return GrammarMasks(1, [handle], bitmask(token_ids, vocab_size)[None])


def no_rows(vocab_size: int) -> Bitmasks:
    return np.zeros((0, -(-vocab_size // 8)), dtype=np.uint8)


def test_nothing_is_asked_for_rows_that_do_not_sample(runner: Runner) -> None:
    runner.allocate_kv_cache(8, 8)
    # The default source raises when it is called.
    output = runner.execute(SchedulerOutput(1, [new(1)], [1], [2], masked_handles=[1]))
    assert list(output.num_sampled) == [0]


def test_a_masked_row_without_a_mask_has_ended(runner: Runner) -> None:
    runner.allocate_kv_cache(8, 8)
    vocab_size = vocab_size_of(runner)
    rest = [i for i in range(256, vocab_size)] or [40, 41]
    both = SchedulerOutput(1, [new(1), new(2), new(3)], [1, 2, 3], [3, 3, 3], masked_handles=[1, 3])
    output = runner.execute(both, lambda: one_row(3, rest, vocab_size))
    assert (list(output.num_sampled), list(output.failed)) == ([0, 1, 1], [])
    assert output.sampled_token_ids[1] in rest
    # What was sent before its sender knew samples nothing for it, and asks for no mask.
    later = SchedulerOutput(2, (), [1, 2], [1, 1], masked_handles=[1])
    output = runner.execute(later)
    assert (list(output.num_sampled), list(output.failed)) == ([0, 1], [])


def test_all_masked_rows_may_have_ended(runner: Runner) -> None:
    runner.allocate_kv_cache(8, 8)
    masks = GrammarMasks(1, [], no_rows(vocab_size_of(runner)))
    step = SchedulerOutput(1, [new(1)], [1], [3], masked_handles=[1])
    output = runner.execute(step, lambda: masks)
    assert (list(output.num_sampled), list(output.failed)) == ([0], [])


def test_a_mask_that_allows_nothing_fails_its_row_alone(runner: Runner) -> None:
    runner.allocate_kv_cache(8, 8)
    step = SchedulerOutput(1, [new(1), new(2)], [1, 2], [3, 3], masked_handles=[1])
    output = runner.execute(step, lambda: one_row(1, [], vocab_size_of(runner)))
    assert list(output.failed) == [FailedRow(1, EMPTY_MASK)]
    assert list(output.num_sampled) == [0, 1]
    assert "structured_outputs" in EMPTY_MASK.message


def test_an_empty_mask_behind_an_accepted_draft_keeps_the_tokens_before_it(
    runner: Runner,
) -> None:
    runner.allocate_kv_cache(16, 8)
    vocab_size = vocab_size_of(runner)
    one, nothing = bitmask([70], vocab_size), bitmask([], vocab_size)
    runner.execute(SchedulerOutput(1, [new(1), new(2)], [1, 2], [3, 3]))
    step = SchedulerOutput(
        2,
        handles=[1, 2],
        num_scheduled_tokens=[4, 1],
        draft_counts=[3, 0],
        draft_token_ids=[70, 71, 72],
        masked_handles=[1],
    )
    masks = GrammarMasks(2, [1] * 4, np.stack([one, nothing, one, one]))
    output = runner.execute(step, lambda: masks)
    assert list(output.num_sampled) == [1, 1]
    assert output.sampled_token_ids[0] == 70
    assert list(output.failed) == [FailedRow(1, EMPTY_MASK)]
