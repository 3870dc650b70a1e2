from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig
from worker_svc.models.config import UnsupportedModelError
from worker_svc.models.decoder_config import DecoderConfig, decoder_config_from_hf
from worker_svc.models.shape import read_shape
from worker_svc.sim.metadata import read_model_info

BASE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 100,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "eos_token_id": 99,
}


def read(**fields: Any) -> DecoderConfig:
    return decoder_config_from_hf(BASE | fields, "SomeForCausalLM")


def test_families_names_of_the_same_fields_are_known() -> None:
    config = decoder_config_from_hf(GPT2, "GPT2LMHeadModel")
    assert (config.hidden_size, config.num_layers, config.num_heads) == (64, 3, 4)
    assert (config.num_kv_heads, config.head_dim, config.longest_sequence) == (4, 16, 128)
    assert (config.eos_token_ids, config.bos_token_id) == ((99,), None)


def test_heads_and_their_size_may_be_given_apart() -> None:
    config = read(num_key_value_heads=2, head_dim=24)
    assert (config.num_kv_heads, config.head_dim) == (2, 24)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"model_type": "phi3", "sliding_window": 8}, (8, 8, 8, 8)),
        ({"model_type": "gemma2", "sliding_window": 8}, (8, None, 8, None)),
        ({"model_type": "cohere2", "sliding_window": 8}, (8, 8, 8, None)),
        ({"model_type": "gemma3_text", "sliding_window": 8}, (8, 8, 8, 8)),
        (
            {"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 2},
            (8, None, 8, None),
        ),
        ({"model_type": "smollm3", "sliding_window": 8}, (None,) * 4),
        ({"model_type": "smollm3", "sliding_window": 8, "use_sliding_window": True}, (8,) * 4),
        ({"model_type": "phi3", "sliding_window": None}, (None,) * 4),
        (
            {
                "model_type": "gemma2",
                "sliding_window": 8,
                "layer_types": ["full_attention"] * 3 + ["sliding_attention"],
            },
            (None, None, None, 8),
        ),
    ],
    ids=str,
)
def test_windows_are_placed_as_the_family_does(
    fields: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert read(**fields).sliding_windows == windows


@pytest.mark.parametrize(
    ("parameters", "length"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 512),
        ({"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5}, 2048),
        ({"sliding_attention": {"rope_type": "default"}}, 512),
    ],
)
def test_scaling_extends_the_longest_sequence(parameters: dict[str, Any], length: int) -> None:
    config = read(rope_parameters=parameters)
    assert config.select_max_model_len(None) == length
    with pytest.raises(ValueError, match="lower --max-model-len"):
        config.select_max_model_len(length + 1)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'gptq'"),
        ({"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
        ({"layer_types": ["full_attention"]}, "1 entries for 4 layers"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
        ({"num_key_value_heads": [4]}, "num_key_value_heads"),
        ({"head_dim": 1.5}, "head_dim"),
    ],
    ids=str,
)
def test_what_is_not_implemented_or_damaged_is_refused_by_name(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"architectures": "LlamaForCausalLM"},
        {"architectures": [7]},
        {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 0},
        {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": [2]},
        {"architectures": ["GPT2LMHeadModel"], "rope_parameters": 3},
        {"architectures": ["GPT2LMHeadModel"], "layer_types": 3},
    ],
    ids=str,
)
def test_a_damaged_config_is_an_error_that_says_so(fields: dict[str, Any]) -> None:
    config = {**BASE, "intermediate_size": 96, "num_key_value_heads": 4, **fields}
    with pytest.raises(UnsupportedModelError, match="model config"):
        read_shape(config, "auto")


def read_info(directory: Path, fields: dict[str, Any], **model: Any) -> Any:
    (directory / "config.json").write_text(json.dumps(fields))
    return read_model_info(
        EngineConfig(
            model=ModelConfig(model=str(directory), **model), device=DeviceConfig(device="sim")
        )
    )


def test_the_simulated_worker_takes_every_family(tmp_path: Path) -> None:
    gemma = BASE | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "sliding_window": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    info = read_info(tmp_path, gemma)
    assert (info.architecture, info.vocab_size, info.num_layers) == ("Gemma2ForCausalLM", 100, 4)
    assert (info.num_kv_heads, info.head_dim, info.max_model_len) == (2, 32, 512)
    assert [group.sliding_window for group in info.kv_cache_groups] == [8, 0]
    assert read_info(tmp_path, GPT2).eos_token_ids == (99,)


def test_the_simulated_worker_refuses_what_the_real_one_refuses(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no module of our own"):
        read_info(tmp_path, GPT2, model_impl="pagewire")
    with pytest.raises(UnsupportedModelError, match="BloomForCausalLM"):
        read_info(tmp_path, GPT2 | {"architectures": ["BloomForCausalLM"]})
