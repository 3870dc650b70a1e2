"""Steps that are replayed against steps that are run, on a CUDA device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagewire.engine_config import SpeculativeConfig
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.cuda.cuda_models import load_runner, make_config, run_prompts, write_model
from tests.worker_svc.cuda.devices import CUDA, needs_cuda, of_triton
from tests.worker_svc.step_driver import DriverRequest, StepDriver
from worker_svc.model_runner import ModelRunner

pytestmark = [needs_cuda, of_triton]

ASKING = SamplingParams(temperature=0.0, logprobs=1)


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRunner, ModelRunner]:
    """With graphs, and without."""
    directory = tmp_path_factory.mktemp("model")
    write_model(directory)
    return (
        load_runner(make_config(directory)),
        load_runner(make_config(directory, enforce_eager=True)),
    )


def first_logprobs(requests: list[DriverRequest], place: int) -> list[float]:
    """Of the tokens that were chosen at a place, while outputs are still the same."""
    return [next(iter(request.logprobs[place].values())) for request in requests]


@pytest.mark.parametrize("num_requests", [1, 2, 4, 8, 16])
def test_a_graph_without_padding_gives_the_same_bits(
    runners: tuple[ModelRunner, ModelRunner], num_requests: int
) -> None:
    lengths = [7 + 30 * index for index in range(num_requests)]
    replayed, run = (run_prompts(runner, lengths, ASKING) for runner in runners)
    assert [r.output_token_ids for r in replayed] == [r.output_token_ids for r in run]
    assert [r.logprobs for r in replayed] == [r.logprobs for r in run]


@pytest.mark.parametrize("num_requests", [3, 5, 13])
def test_a_padded_graph_gives_the_same_numbers_but_for_rounding(
    runners: tuple[ModelRunner, ModelRunner], num_requests: int
) -> None:
    lengths = [7 + 30 * index for index in range(num_requests)]
    replayed, run = (run_prompts(runner, lengths, ASKING, max_tokens=2) for runner in runners)
    for place in (0, 1):
        expected = first_logprobs(run, place)
        assert first_logprobs(replayed, place) == pytest.approx(expected, abs=0.2)


def test_the_graphs_are_used_and_only_where_they_fit(
    runners: tuple[ModelRunner, ModelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runners[0]
    driver = StepDriver(runner, num_blocks=256)
    loaded = runner._loaded
    assert loaded is not None
    assert loaded.graphs is not None
    used: list[bool] = []
    run = loaded.graphs.run

    def noting(inputs):  # type: ignore[no-untyped-def]
        hidden = run(inputs)
        used.append(hidden is not None)
        return hidden

    monkeypatch.setattr(loaded.graphs, "run", noting)
    driver.add([5] * 20, max_tokens=3)
    driver.step()
    driver.step()
    driver.add([6] * 9, max_tokens=3)
    driver.run()
    # Prefill, decode, a mixed step, then decodes.
    assert used == [False, True, False, True, True]


def test_memory_that_was_free_when_graphs_were_recorded_may_be_written(
    runners: tuple[ModelRunner, ModelRunner],
) -> None:
    runner = runners[0]
    runner.allocate_kv_cache(200, 16)
    expected = [r.logprobs for r in run_prompts(runner, [20, 9, 33], ASKING, num_blocks=200)]
    # Of many sizes, so that whatever is free is taken.
    taken = [torch.full((2**power,), -1, device=CUDA) for power in range(5, 22) for _ in range(50)]
    again = [r.logprobs for r in run_prompts(runner, [20, 9, 33], ASKING, num_blocks=200)]
    assert again == expected
    del taken


def test_nothing_is_written_for_padding(runners: tuple[ModelRunner, ModelRunner]) -> None:
    runner = runners[0]
    run_prompts(runner, [20, 9, 33], ASKING)
    assert runner._loaded is not None
    cache = runner._loaded.backend.cache  # type: ignore[attr-defined]
    for tensor in (*cache.keys, *cache.values):
        assert not tensor[:16].any()


def test_graphs_stay_for_a_cache_of_the_same_size(
    runners: tuple[ModelRunner, ModelRunner],
) -> None:
    runner = runners[0]
    before = run_prompts(runner, [20, 9], ASKING)
    assert runner._loaded is not None
    graphs = runner._loaded.graphs
    runner.reset()
    after = run_prompts(runner, [20, 9], ASKING)
    assert runner._loaded.graphs is graphs
    assert [r.logprobs for r in before] == [r.logprobs for r in after]
    runner.allocate_kv_cache(300, 16)
    assert runner._loaded.graphs is not graphs


def test_drafts_are_verified_beside_graphs(tmp_path: Path) -> None:
    write_model(tmp_path)
    config = replace(make_config(tmp_path), speculative=SpeculativeConfig("ngram"))
    runner = load_runner(config)
    driver = StepDriver(runner, num_blocks=256)
    plain = driver.add([5, 6, 7] * 6, max_tokens=10)
    driver.run()
    drafted = driver.add(
        [5, 6, 7] * 6, max_tokens=10, propose=lambda out: plain.output_token_ids[len(out) :][:3]
    )
    steps = driver.num_steps
    driver.run()
    assert len(drafted.output_token_ids) == 10
    assert driver.num_steps - steps < 10
