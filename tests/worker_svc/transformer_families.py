"""Tiny random models of every family that the Transformers backend serves.

Windows, multipliers and caps are small enough to matter within a short prompt. As in `tiny_models`,
weights are wide and norms and biases random, so that leaving one out changes tokens.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

VOCAB_SIZE = 300
WINDOW = 20
MAX_POSITIONS = 256

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = _COMMON | {"num_key_value_heads": 2, "intermediate_size": 96}
_GPT = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": MAX_POSITIONS,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MIXED_LAYERS = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
# Gemma scales its embeddings up: tied to a random head, they would repeat the last token for ever.
_UNTIED = {"tie_word_embeddings": False}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}

# Name: architecture, config class, fields.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT),
    "gpt2 scaled by layer": (
        "GPT2LMHeadModel",
        "GPT2Config",
        _GPT | {"scale_attn_by_inverse_layer_idx": True},
    ),
    "opt": ("OPTForCausalLM", "OPTConfig", _COMMON | {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "stablelm": (
        "StableLmForCausalLM",
        "StableLmConfig",
        _GROUPED | {"use_qkv_bias": True, "qk_layernorm": True},
    ),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", _GROUPED | {"clip_qkv": 4.0}),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "granite": (
        "GraniteForCausalLM",
        "GraniteConfig",
        _GROUPED
        | {
            "attention_multiplier": 0.3,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 3.0,
        },
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        _GROUPED | _MIXED_LAYERS | {"no_rope_layers": [1, 0], "use_sliding_window": True},
    ),
    "phi": ("PhiForCausalLM", "PhiConfig", _COMMON | {"intermediate_size": 96}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", _GROUPED | {"sliding_window": WINDOW}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _COMMON | {"intermediate_size": 96}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", _GPT | {"rotary_dim": 8}),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", _GROUPED),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", _GROUPED | _MIXED_LAYERS),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", _GROUPED),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        _GROUPED
        | _MIXED_LAYERS
        | _UNTIED
        | {"head_dim": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _GROUPED | _MIXED_LAYERS | _UNTIED | {"head_dim": 16},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        _GROUPED | {"num_local_experts": 4, "sliding_window": WINDOW},
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        _GROUPED
        | {
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", _GROUPED | {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _GROUPED | {"head_dim": 16}),
}

# Decoders without a row.
UNLISTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "olmoe": (
        "OlmoeForCausalLM",
        "OlmoeConfig",
        _GROUPED | {"num_experts": 4, "num_experts_per_tok": 2},
    ),
}


def phi3_longrope(original: int) -> dict[str, Any]:
    """Fields that extend Phi-3 from `original` positions to all."""
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": _LONGROPE | {"original_max_position_embeddings": original},
    }


def write_family(directory: Path, name: str, **overrides: Any) -> Any:
    """Writes the model to `directory` as transformers saves it; returns transformers' model."""
    architecture, config_class, fields = FAMILIES[name]
    return write_model(directory, architecture, config_class, **(fields | overrides))


def write_model(directory: Path, architecture: str, config_class: str, **fields: Any) -> Any:
    """Writes a random model of any class; returns it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, config_class)(**fields)
        config._attn_implementation = "eager"
        model = getattr(transformers, architecture)(config).eval()
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.data.normal_(0.0, 0.2)
            elif parameter.ndim == 1:
                parameter.data.uniform_(0.5, 1.5)
            else:
                parameter.data.normal_(0.0, 0.5)
        model.save_pretrained(directory)
    return model
