"""The simulated runner with a model whose layers are in several KV cache groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pagewire.sampling_params import SamplingParams
from tests.worker_svc.grouped_models import FULL, SLIDING, write_grouped_model
from tests.worker_svc.harness import BLOCK_SIZE, VOCABULARY, sim_config
from worker_svc.sim.oracle import expected_tokens
from worker_svc.sim.runner import SimRunner
from worker_svc.step import ModelInfo, NewRequest, SchedulerOutput

GREEDY = SamplingParams(temperature=0.0)
PROMPT = list(range(300, 311))
WINDOW = 6


def load(directory: Path, layer_types: Sequence[str]) -> tuple[SimRunner, ModelInfo]:
    runner = SimRunner(sim_config(write_grouped_model(directory, layer_types, WINDOW)))
    info = runner.load(lambda stage, fraction: None)
    runner.allocate_kv_cache(64, BLOCK_SIZE)
    return runner, info


def windows_of(info: ModelInfo) -> list[int]:
    return [group.sliding_window for group in info.kv_cache_groups]


def run(runner: SimRunner, new: NewRequest, *blocks: tuple[list[int], list[int]]) -> list[int]:
    """The whole prompt, then a token a step; `blocks` are counts and ids of the later steps."""
    left = len(PROMPT) - new.num_computed_tokens
    first = runner.execute(SchedulerOutput(1, [new], [1], [left]))
    output = list(first.sampled_token_ids)
    for step, (counts, block_ids) in enumerate(blocks, 2):
        outcome = runner.execute(SchedulerOutput(step, (), [1], [1], counts, block_ids))
        output += outcome.sampled_token_ids
    return output


def test_the_groups_are_those_of_the_models_layers(tmp_path: Path) -> None:
    _, info = load(tmp_path, [SLIDING, SLIDING, FULL] * 2)
    assert [(len(g.layers), g.sliding_window) for g in info.kv_cache_groups] == [
        (2, WINDOW),
        (2, WINDOW),
        (2, 0),
    ]


def test_a_model_without_windows_is_one_group(tmp_path: Path) -> None:
    _, info = load(tmp_path, [FULL] * 3)
    assert [(len(g.layers), g.sliding_window) for g in info.kv_cache_groups] == [(3, 0)]


def test_a_block_has_the_bytes_of_the_largest_group(tmp_path: Path) -> None:
    sizes = []
    for name, layer_types in (("a", [FULL] * 6), ("b", [FULL, SLIDING] * 3)):
        (tmp_path / name).mkdir()
        runner, _ = load(tmp_path / name, layer_types)
        sizes.append(runner.kv_bytes_per_block(BLOCK_SIZE))
    assert sizes[0] == 2 * sizes[1]


@pytest.mark.parametrize("layer_types", [[FULL, SLIDING], [SLIDING] * 2, [SLIDING, SLIDING, FULL]])
def test_tokens_are_the_oracles(tmp_path: Path, layer_types: list[str]) -> None:
    runner, info = load(tmp_path, layer_types)
    windows = windows_of(info)
    num_groups = len(windows)
    ids = list(range(1, 3 * num_groups + 1))
    new = NewRequest(1, "r", PROMPT, [], GREEDY, 0, ids, [3] * num_groups)
    none: tuple[list[int], list[int]] = ([], [])
    grown = ([1] * num_groups, list(range(40, 40 + num_groups)))
    output = run(runner, new, none, grown, none, none)
    assert output == expected_tokens(PROMPT, GREEDY, 5, VOCABULARY, windows=windows)


@pytest.mark.parametrize(("null", "is_right"), [(1, True), (2, False)])
def test_a_hit_needs_the_blocks_of_the_window_and_no_others(
    tmp_path: Path, null: int, is_right: bool
) -> None:
    runner, info = load(tmp_path, [FULL, SLIDING])
    run(runner, NewRequest(1, "r", PROMPT, [], GREEDY, 0, [1, 2, 3, 4, 5, 6], [3, 3]))
    # Token 9 sees from 4 on, in the second block.
    table = [0] * null + [4, 5, 6][null:]
    hit = NewRequest(1, "s", PROMPT, [], GREEDY, 9, [1, 2, 3, *table], [3, 3])
    expected = expected_tokens(PROMPT, GREEDY, 1, VOCABULARY, windows=windows_of(info))
    assert (run(runner, hit) == expected) == is_right


@pytest.mark.parametrize("block_id", [2, 5, 6])
def test_a_block_given_away_too_early_changes_tokens(tmp_path: Path, block_id: int) -> None:
    runner, info = load(tmp_path, [FULL, SLIDING])
    new = NewRequest(1, "r", PROMPT, [], GREEDY, 0, [1, 2, 3, 4, 5, 6], [3, 3])
    thief = NewRequest(2, "t", [400], [], GREEDY, 0, [block_id, 20], [1, 1])
    runner.execute(SchedulerOutput(1, [new], [1], [len(PROMPT)]))
    sampled = runner.execute(SchedulerOutput(2, [thief], [2, 1], [1, 1])).sampled_token_ids
    expected = expected_tokens(PROMPT, GREEDY, 2, VOCABULARY, windows=windows_of(info))
    assert sampled[1] != expected[1]
