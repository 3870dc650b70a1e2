from __future__ import annotations

from typing import Any

import pytest

from worker_svc.models.config import LlamaConfig, llama_config_from_hf

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def read(**fields: Any) -> LlamaConfig:
    return llama_config_from_hf(BASE | fields, "LlamaForCausalLM")


def test_unset_fields_have_the_familys_defaults() -> None:
    config = read()
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert not config.tie_word_embeddings
    assert not config.attention_qkv_bias
    assert config.sliding_windows == (None, None, None)


def test_rope_scaling_reads_the_same_in_old_and_new_form() -> None:
    scaling = {"factor": 2.0, "original_max_position_embeddings": 128}
    old = read(rope_scaling={"type": "yarn", **scaling}, rope_theta=5e5)
    new = read(rope_parameters={"rope_type": "yarn", "rope_theta": 5e5, **scaling})
    assert old == new
    assert old.rope.theta == 5e5


def test_qwen2_has_biases_on_q_k_and_v_only() -> None:
    config = read(model_type="qwen2")
    assert (config.attention_qkv_bias, config.attention_output_bias) == (True, False)


def test_qwen3_norms_q_and_k() -> None:
    assert read(model_type="qwen3").qk_norm


def test_qwen_windows_are_off_unless_said() -> None:
    assert read(model_type="qwen2", sliding_window=64).sliding_windows == (None,) * 3
    used = read(model_type="qwen2", sliding_window=64, use_sliding_window=True, max_window_layers=2)
    assert used.sliding_windows == (None, None, 64)


def test_layer_types_place_the_windows() -> None:
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    config = read(model_type="mistral", sliding_window=8, layer_types=types)
    assert config.sliding_windows == (8, None, 8)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "mystery"}}, "rope_type 'mystery'"),
        ({"rope_scaling": {"type": "linear"}}, "`factor`"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq'"),
        ({"num_experts": 8}, "num_experts"),
        ({"vocab_size": None}, "vocab_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"model_type": "mistral", "sliding_window": 8, "layer_types": ["x"] * 3}, "'x'"),
        ({"eos_token_id": "end"}, "'end'"),
    ],
    ids=str,
)
def test_what_is_not_implemented_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read(**fields)


def test_eos_may_be_one_id_or_several() -> None:
    assert read(eos_token_id=7).eos_token_ids == (7,)
    assert read(eos_token_id=[7, 8]).eos_token_ids == (7, 8)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "dynamic", "factor": 2.0}, 1024),
        ({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ({"rope_type": "default"}, 512),
    ],
)
def test_scaling_extends_the_longest_sequence(scaling: dict[str, Any], length: int) -> None:
    assert read(rope_parameters=scaling).rope.max_model_len(512) == length
