from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.worker_svc.transformer_families import WINDOW, write_family, write_model
from worker_svc.models.config import UnsupportedModelError
from worker_svc.models.registry import REFUSED
from worker_svc.models.transformers_backend import TransformersModel
from worker_svc.models.transformers_probe import (
    ProbeCalls,
    check_locality,
    probe_layers,
    probe_mask,
)
from worker_svc.weights.safetensors_source import SafetensorsSource

MAX_MODEL_LEN = 64
SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
OTHER_NAMES = {"vocab_size": 300, "hidden_size": 64, "n_layer": 2, "n_head": 4}
MOE = {"num_key_value_heads": 2, "intermediate_size": 96, "num_local_experts": 4, "head_dim": 16}
UNSUPPORTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "FalconForCausalLM": ("FalconConfig", SMALL, "cannot build|fails|layers"),
    "BloomForCausalLM": ("BloomConfig", OTHER_NAMES, r"its 2 layers.*\[\]"),
    "MptForCausalLM": (
        "MptConfig",
        {"vocab_size": 300, "d_model": 64, "n_layers": 2, "n_heads": 4},
        "forward pass fails|layers",
    ),
    "GPTNeoForCausalLM": (
        "GPTNeoConfig",
        {
            "vocab_size": 300,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 256,
        },
        "cannot build|fails|layers",
    ),
    "XGLMForCausalLM": (
        "XGLMConfig",
        {"vocab_size": 300, "d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 96},
        r"its 2 layers.*\[\]",
    ),
    "GptOssForCausalLM": ("GptOssConfig", SMALL | MOE, "its attention takes s_aux"),
    "DeepseekV3ForCausalLM": (
        "DeepseekV3Config",
        SMALL
        | {
            "intermediate_size": 96,
            "first_k_dense_replace": 2,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
        },
        "keys and values have different sizes",
    ),
    "MambaForCausalLM": (
        "MambaConfig",
        {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 4},
        r"its 2 layers.*\[\]",
    ),
    "Lfm2ForCausalLM": (
        "Lfm2Config",
        SMALL
        | {
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "layer_types": ["conv", "full_attention"],
        },
        r"its 2 layers.*\[1\]",
    ),
}


def load(directory: Path, architecture: str) -> TransformersModel:
    source = SafetensorsSource(directory)
    return TransformersModel.load(
        source, architecture, MAX_MODEL_LEN, torch.float32, lambda *at: None
    )


@pytest.mark.parametrize("architecture", UNSUPPORTED)
def test_the_probe_refuses_by_name_what_paged_attention_cannot_give(
    architecture: str, tmp_path: Path
) -> None:
    assert architecture in REFUSED
    config_class, fields, problem = UNSUPPORTED[architecture]
    write_model(tmp_path, architecture, config_class, **fields)
    with pytest.raises(UnsupportedModelError, match=problem) as caught:
        load(tmp_path, architecture)
    assert architecture in str(caught.value)


def test_a_dynamic_rotation_is_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    write_family(tmp_path, "olmo", rope_parameters=rope)
    with pytest.raises(UnsupportedModelError, match="rope_type is dynamic"):
        load(tmp_path, "OlmoForCausalLM")


def test_what_layers_ask_for_becomes_the_spec(tmp_path: Path) -> None:
    write_family(tmp_path, "gemma2")
    spec = load(tmp_path, "Gemma2ForCausalLM").attention_spec
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 24)
    assert (spec.scale, spec.softcap) == (256**-0.5, 2.0)
    assert spec.sliding_windows == (WINDOW, None)


def causal(batch: int, head: int, queries: Any, keys: Any) -> Any:
    return keys <= queries


def make_mask(mask_function: Any) -> torch.Tensor:
    return probe_mask(1, 4, 4, mask_function)


def test_a_mask_says_its_window() -> None:
    def windowed(batch: int, head: int, queries: Any, keys: Any) -> Any:
        return (keys <= queries) & (keys > queries - 3)

    assert make_mask(causal).unique().tolist() == [0]
    assert make_mask(windowed).unique().tolist() == [3]


@pytest.mark.parametrize(
    "mask_function",
    [
        lambda batch, head, queries, keys: (keys <= queries) & (keys // 4 == queries // 4),
        lambda batch, head, queries, keys: (keys <= queries) | (keys < 2),
        lambda batch, head, queries, keys: (keys <= queries) & (keys != 1),
        lambda batch, head, queries, keys: keys == keys,
    ],
    ids=["chunks", "a prefix seen by all", "a hole", "everything"],
)
def test_another_mask_is_refused(mask_function: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="neither causal nor a sliding window"):
        make_mask(mask_function)


class Layer(nn.Module):
    def __init__(self, layer_idx: int, *, is_causal: bool = True) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.is_causal = is_causal


HEADS = torch.ones(1, 4, 8, 16)
MASK = torch.zeros(1, 1, 8, 8, dtype=torch.int64)


@pytest.mark.parametrize(
    ("mask", "fields", "problem"),
    [
        (MASK, {"s_aux": HEADS}, "takes s_aux"),
        (MASK, {"position_bias": HEADS, "head_mask": HEADS}, "takes head_mask, position_bias"),
        (MASK, {"output_attentions": True}, "takes output_attentions"),
        (MASK, {"is_causal": False}, "takes is_causal"),
        (MASK.float(), {}, "mask of its own"),
        (MASK + 5, {"sliding_window": 3}, "window of 5, its layer one of 3"),
    ],
    ids=["sinks", "biases", "weights", "not causal", "own mask", "windows"],
)
def test_arguments_that_matter_and_are_not_honoured_are_refused(
    mask: torch.Tensor, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=problem):
        ProbeCalls()(Layer(0), HEADS, HEADS, HEADS, mask, **fields)


def test_a_layer_that_is_not_causal_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="not causal"):
        ProbeCalls()(Layer(0, is_causal=False), HEADS, HEADS, HEADS, MASK)


def test_arguments_without_effect_are_taken() -> None:
    calls = ProbeCalls()
    calls(Layer(0), HEADS, HEADS, HEADS, MASK, dropout=0.0, is_causal=True, s_aux=None)
    assert calls.layers[0].scale == 0.25


@pytest.mark.parametrize("layers", [[0], [0, 0], [1, 0], [0, 1, 1], [-1, -1]])
def test_each_layer_must_call_once_and_in_turn(layers: list[int]) -> None:
    from worker_svc.models.transformers_attention import attention_forward

    def forward(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            attention_forward(Layer(layer), HEADS, HEADS, HEADS, MASK)
        return token_ids

    with pytest.raises(UnsupportedModelError, match="its 2 layers"):
        probe_layers(forward, num_layers=2, vocab_size=300, max_model_len=64)


def embed(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    table = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    return table[token_ids] + positions[:, None]


@pytest.mark.parametrize(
    "forward",
    [
        lambda ids, positions: embed(ids, positions).cumsum(0),
        lambda ids, positions: embed(ids, positions) + embed(ids, positions).mean(0),
        lambda ids, positions: embed(ids, positions) + 0.1 * embed(ids, positions).roll(1, 0),
        lambda ids, positions: embed(ids, torch.arange(len(ids))),
    ],
    ids=["state", "mean", "convolution", "own positions"],
)
def test_tokens_that_reach_each_other_beside_attention_are_refused(forward: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="outside attention"):
        check_locality(forward, vocab_size=300, max_model_len=64)


def test_weights_that_give_no_numbers_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="not finite"):
        check_locality(lambda *inputs: embed(*inputs) * torch.nan, vocab_size=300, max_model_len=64)


def test_tokens_that_stand_for_themselves_are_taken() -> None:
    check_locality(embed, vocab_size=300, max_model_len=64)
