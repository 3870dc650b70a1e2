"""Which tokens the simulated model can give."""

from __future__ import annotations

from pagewire.sampling_params import SamplingParams
from tests.worker_svc.runner_factories import bitmask
from worker_svc.sim.sampling import SimVocabulary, choose_token

GREEDY = SamplingParams(temperature=0.0)
VOCABULARY = SimVocabulary(1000, (7,))


def tokens(params: SamplingParams, seed: int = 1, output_index: int = 5) -> list[int | None]:
    return [
        choose_token(context, params, seed, output_index, VOCABULARY) for context in range(5000)
    ]


def test_greedy_tokens_depend_on_neither_seed_nor_index() -> None:
    assert tokens(GREEDY, seed=1, output_index=2) == tokens(GREEDY, seed=3, output_index=4)


def test_sampled_tokens_depend_on_seed_and_index_alone() -> None:
    params = SamplingParams(temperature=1.0)
    assert tokens(params, 1, 2) == tokens(params, 1, 2)
    assert tokens(params, 1, 2) != tokens(params, 1, 3)
    assert tokens(params, 1, 2) != tokens(params, 2, 2)


def test_the_end_of_sequence_comes_now_and_then() -> None:
    assert 5 <= tokens(GREEDY).count(7) <= 60


def test_no_end_of_sequence_or_stop_token_before_min_tokens() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=6, stop_token_ids=tuple(range(300, 400)))
    early, late = set(tokens(params, output_index=5)), set(tokens(params, output_index=6))
    assert early.isdisjoint({7, *range(300, 400)})
    assert late > {7, 300, 399}


def test_only_allowed_tokens_are_drawn() -> None:
    assert set(tokens(SamplingParams(allowed_token_ids=(3, 900)))) == {3, 900}


def test_before_min_tokens_an_allowed_stop_is_not_drawn() -> None:
    params = SamplingParams(allowed_token_ids=(7, 300, 900), min_tokens=6, stop_token_ids=(300,))
    assert set(tokens(params, output_index=5)) == {900}
    assert set(tokens(params, output_index=6)) == {7, 300, 900}


def test_where_all_that_is_allowed_is_forbidden_there_is_no_token() -> None:
    params = SamplingParams(allowed_token_ids=(7,), min_tokens=6)
    assert set(tokens(params, output_index=5)) == {None}


def test_low_ids_are_left_to_special_tokens() -> None:
    assert min(token_id for token_id in tokens(GREEDY) if token_id not in (7, None)) >= 256


def test_a_vocabulary_of_nothing_but_stops_still_gives_a_token() -> None:
    vocabulary = SimVocabulary(2, (0, 1))
    assert choose_token(3, SamplingParams(min_tokens=9), 1, 0, vocabulary) == 1


def test_what_is_forced_comes_unless_a_mask_forbids_it() -> None:
    params = SamplingParams(allowed_token_ids=(3, 900))
    assert choose_token(5, params, 1, 0, VOCABULARY, forced=17) == 17
    assert choose_token(5, GREEDY, 1, 0, VOCABULARY, bitmask([17, 20], 1000), 17) == 17
    assert choose_token(5, GREEDY, 1, 0, VOCABULARY, bitmask([20], 1000), 17) == 20
