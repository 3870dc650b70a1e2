from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from worker_svc.models.config import LlamaConfig, UnsupportedModelError, llama_config_from_hf
from worker_svc.parallel.layout import ONE_RANK, RankLayout
from worker_svc.parallel.shards import ModelShards, Span, check_layout


def config_of(**overrides: Any) -> LlamaConfig:
    fields: dict[str, Any] = {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
    }
    return llama_config_from_hf(fields | overrides, "LlamaForCausalLM")


def test_ranks_are_numbered_stage_after_stage() -> None:
    places = [RankLayout(rank, tp_size=2, pp_size=3) for rank in range(6)]
    assert [(place.stage, place.tp_rank) for place in places] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]
    assert [place.is_first_stage for place in places] == [True] * 2 + [False] * 4
    assert [place.is_last_stage for place in places] == [False] * 4 + [True] * 2
    assert ONE_RANK.is_first_stage and ONE_RANK.is_last_stage


@pytest.mark.parametrize(("num_layers", "pp_size"), [(30, 1), (30, 2), (30, 4), (7, 3), (3, 3)])
def test_stages_have_all_layers_once_and_as_evenly_as_it_goes(
    num_layers: int, pp_size: int
) -> None:
    parts = [RankLayout(stage, 1, pp_size).layers(num_layers) for stage in range(pp_size)]
    assert [layer for part in parts for layer in part] == list(range(num_layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_its_replica_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of 2 x 2"):
        RankLayout(rank, 2, 2)


def test_a_rank_has_its_heads_and_columns() -> None:
    shards = ModelShards.of(config_of(), RankLayout(2, tp_size=3))
    assert shards.heads == Span(6, 3, 9)
    assert shards.kv_heads == Span(2, 1, 3)
    assert shards.intermediate == Span(1024, 512, 1536)
    assert shards.vocabulary == Span(32768, 16384, 49152)


def test_kv_heads_stand_on_several_ranks_when_there_are_fewer() -> None:
    config = config_of(num_attention_heads=8, num_key_value_heads=2, hidden_size=512)
    heads = [ModelShards.of(config, RankLayout(rank, 4)).kv_heads for rank in range(4)]
    assert heads == [Span(0, 1, 2), Span(0, 1, 2), Span(1, 1, 2), Span(1, 1, 2)]


@pytest.mark.parametrize("vocab_size", [5, 7, 8])
def test_the_vocabulary_is_split_whether_it_divides_or_not(vocab_size: int) -> None:
    config = config_of(
        vocab_size=vocab_size, num_attention_heads=8, num_key_value_heads=8, hidden_size=512
    )
    spans = [ModelShards.of(config, RankLayout(rank, 4)).vocabulary for rank in range(4)]
    tokens = [token for s in spans for token in range(s.start, s.start + s.size)]
    assert tokens == list(range(vocab_size))


@pytest.mark.parametrize("size", [2, 4, 9])
def test_a_size_that_does_not_divide_is_refused_with_those_that_do(size: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"size {size} does not.* may be 1 or 3$"):
        check_layout(config_of(), RankLayout(0, size))
    check_layout(config_of(), RankLayout(0, 3))


def test_kv_heads_must_divide_too() -> None:
    config = replace(config_of(), num_heads=12, num_kv_heads=4, intermediate_size=1536)
    with pytest.raises(UnsupportedModelError, match=r"12 query heads, 4 KV heads.* 1, 2, 4 or 12$"):
        check_layout(config, RankLayout(0, 3))


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"size 31 is more than its 30 .* 1 to 30$"):
        check_layout(config_of(), RankLayout(0, 1, 31))
