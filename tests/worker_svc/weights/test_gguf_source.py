from __future__ import annotations

import numpy as np
import pytest
import torch

from pagewire.model_source import resolve_model
from worker_svc.weights.dequantize import dequantize
from worker_svc.weights.gguf_names import hf_name
from worker_svc.weights.gguf_source import GgufSource, unpermute_rows
from worker_svc.weights.slots import TensorPart
from worker_svc.weights.source import WeightsError, open_weights


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
    ],
)
def test_names_become_those_of_hugging_face(name: str, expected: str) -> None:
    assert hf_name(name) == expected


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.ffn_gate_exps.weight", "blk.x.y"])
def test_an_unknown_tensor_is_refused_by_name(name: str) -> None:
    with pytest.raises(WeightsError, match=name):
        hf_name(name)


def test_unpermuting_undoes_the_conversion_of_rows() -> None:
    heads, half, columns = 3, 4, 5
    original = torch.arange(heads * 2 * half * columns).view(-1, columns)
    halves = original.view(heads, 2, half, columns)
    converted = halves.transpose(1, 2).reshape(original.shape)
    assert not torch.equal(converted, original)
    assert torch.equal(unpermute_rows(converted, heads), original)


def test_the_embedded_model_has_its_shape() -> None:
    source = open_weights(resolve_model("smollm2"))
    assert isinstance(source, GgufSource)
    assert source.config["architectures"] == ["LlamaForCausalLM"]
    assert source.config["num_key_value_heads"] == 3
    assert source.config["tie_word_embeddings"] is True
    assert len(source.names()) == 272
    assert source.tensor("model.layers.0.self_attn.k_proj.weight").shape == (192, 576)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.1.self_attn.q_proj.weight", None),
        ("model.layers.1.self_attn.k_proj.weight", TensorPart(0, 64, 128)),
        ("model.layers.1.mlp.up_proj.weight", TensorPart(0, 512, 512)),
        ("model.layers.1.mlp.down_proj.weight", TensorPart(1, 512, 512)),
    ],
)
def test_blocks_are_those_of_the_dequantized_rows(name: str, part: TensorPart | None) -> None:
    source = open_weights(resolve_model("smollm2"))
    found = source.blocks(name, part)
    assert found is not None
    expected = source.tensor(name) if part is None else source.part(name, part)
    weights = dequantize(np.ascontiguousarray(found.blocks).ravel(), found.ggml_type, name)
    assert np.array_equal(weights.reshape(expected.shape), expected.numpy())


def test_blocks_that_a_part_cuts_through_are_not_given() -> None:
    source = open_weights(resolve_model("smollm2"))
    name = "model.layers.1.mlp.down_proj.weight"
    assert source.blocks(name, TensorPart(1, 16, 512)) is None
    assert source.blocks("model.norm.weight") is None
