"""The embedded model against transformers, both in float32 on the same dequantized file."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig
from pagewire.sampling_params import SamplingParams
from tests.parity import ParityReport
from tests.worker_svc.reference import smollm2_greedy
from tests.worker_svc.step_driver import GREEDY, DriverRequest, StepDriver
from worker_svc.model_runner import ModelRunner

MAX_TOKENS = 32
# "The capital of France is", as the model's tokenizer has it.
TEXT = [504, 3575, 282, 4649, 314]
LENGTHS = (1, 2, 3, 5, 8, 13, 15, 16, 17, 24, 31, 32, 33, 48, 64, 100, 127, 129, 200, 300)
FEW_LENGTHS = (1, 5, 16, 33, 129)
VOCAB_SIZE = 49_152


def make_prompts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """A sentence's start behind random tokens, so that lengths differ and answers too."""
    rng = random.Random(7)
    prompts = []
    for length in lengths:
        noise = [rng.randrange(100, VOCAB_SIZE) for _ in range(max(0, length - len(TEXT)))]
        prompts.append([*noise, *TEXT[-length:]])
    return prompts


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    runner = ModelRunner(
        EngineConfig(
            model=ModelConfig(model="smollm2", dtype="float32"),
            device=DeviceConfig(device="cpu", num_threads=1),
        )
    )
    runner.load(lambda phase, fraction: None)
    return runner


def run(
    runner: ModelRunner,
    sampling: SamplingParams,
    lengths: Sequence[int] = LENGTHS,
    max_tokens: int = MAX_TOKENS,
    chunk: int = 10_000,
    preempt_after: int | None = None,
) -> list[DriverRequest]:
    driver = StepDriver(runner, num_blocks=512, chunk=chunk)
    requests = [
        driver.add(prompt, sampling, max_tokens, preempt_after) for prompt in make_prompts(lengths)
    ]
    driver.run()
    return requests


@pytest.mark.timeout(600)
def test_greedy_ids_equal_those_of_transformers(runner: ModelRunner) -> None:
    expected = smollm2_greedy(make_prompts(), MAX_TOKENS)
    report = ParityReport()
    for request, reference in zip(run(runner, GREEDY), expected, strict=True):
        report.compare(
            f"{len(request.prompt_token_ids)} prompt tokens",
            request.output_token_ids,
            reference.token_ids,
            reference.gaps.__getitem__,
        )
    assert report.num_requests == 20
    report.check()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("lengths", "max_tokens"),
    [(FEW_LENGTHS, 12), pytest.param(LENGTHS, MAX_TOKENS, marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_chunks_and_preemption_change_no_sampled_token(
    runner: ModelRunner, lengths: Sequence[int], max_tokens: int
) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=99)
    whole = [each.output_token_ids for each in run(runner, sampling, lengths, max_tokens)]
    distinct = {token for output in whole for token in output}
    assert len(distinct) > 5 * len(lengths), "what repeats itself compares nothing"
    again = run(runner, sampling, lengths, max_tokens, chunk=33, preempt_after=5)
    assert [request.output_token_ids for request in again] == whole
