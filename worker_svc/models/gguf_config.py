"""GGUF metadata to the fields of a Hugging Face config.json, so that one parser reads both.

Knows GGUF's key names for Llama-like architectures. Of tensors' contents it knows the one that is
configuration: the rotation's factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pagewire.gguf import GgufFile
from worker_svc.models.config import UnsupportedModelError

_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "mistral": ("MistralForCausalLM", "mistral"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
_REQUIRED = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
ROPE_FACTORS = "rope_freqs.weight"
"""By what each frequency of the rotation is divided: conversion's form of Llama 3's scaling."""
_REFUSED = ("expert_count", "rope.scaling.finetuned_only")
_GEMMA = ("gemma2", "gemma3")
# The models whose attention scale is that of hidden_size / heads, by their layers: no key says it.
_GEMMA_WIDE_SCALE_LAYERS = {"gemma2": 46, "gemma3": 62}
_GEMMA3_LOCAL_ROPE_THETA = 10_000.0


def hf_config_from_gguf(file: GgufFile) -> dict[str, Any]:
    """Config fields of a GGUF file.

    Raises:
        UnsupportedModelError: The architecture is not implemented, or a key is missing.
    """
    metadata = file.metadata
    architecture = str(metadata.get("general.architecture"))
    if architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UnsupportedModelError(
            f"GGUF architecture {architecture!r} is not implemented; these are: {known}"
        )
    fields: dict[str, Any] = {
        name.removeprefix(f"{architecture}."): value
        for name, value in metadata.items()
        if name.startswith(f"{architecture}.")
    }
    _check(fields, architecture)
    config: dict[str, Any] = {name: fields[key] for key, name in _REQUIRED.items()}
    hf_architecture, model_type = _ARCHITECTURES[architecture]
    heads = config["num_attention_heads"]
    head_dim: int = fields.get("attention.key_length") or config["hidden_size"] // heads
    if fields.get("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError(
            f"GGUF key {architecture}.rope.dimension_count differs from the head size {head_dim}"
        )
    gemma = _gemma_fields(architecture, fields, config, head_dim) if architecture in _GEMMA else {}
    return config | {
        "architectures": [hf_architecture],
        "model_type": model_type,
        "vocab_size": _vocab_size(file),
        "num_key_value_heads": fields.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rope_parameters": _rope_parameters(fields) | _rope_factors(file, config, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        **gemma,
    }


def _gemma_fields(
    architecture: str, fields: dict[str, Any], config: dict[str, Any], head_dim: int
) -> dict[str, Any]:
    is_wide = config["num_hidden_layers"] == _GEMMA_WIDE_SCALE_LAYERS[architecture]
    own: dict[str, Any] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": fields.get("attention.sliding_window"),
        "query_pre_attn_scalar": (
            config["hidden_size"] // config["num_attention_heads"] if is_wide else head_dim
        ),
    }
    if architecture == "gemma2":
        return own | {
            "attn_logit_softcapping": fields.get("attn_logit_softcapping"),
            "final_logit_softcapping": fields.get("final_logit_softcapping"),
        }
    local = {"rope_type": "default", "rope_theta": _GEMMA3_LOCAL_ROPE_THETA}
    rotation = {"full_attention": _rope_parameters(fields), "sliding_attention": local}
    return own | {"rope_parameters": rotation}


def _check(fields: dict[str, Any], architecture: str) -> None:
    for key in _REQUIRED:
        if key not in fields:
            raise UnsupportedModelError(f"GGUF key {architecture}.{key} is missing")
    refused = _REFUSED if architecture in _GEMMA else (*_REFUSED, "attention.sliding_window")
    for key in refused:
        if fields.get(key):
            raise UnsupportedModelError(f"GGUF key {architecture}.{key} is not implemented")
    for key in ("attention.head_count", "attention.head_count_kv", "attention.key_length"):
        if not isinstance(fields.get(key, 1), int):
            raise UnsupportedModelError(f"GGUF key {architecture}.{key} differs between layers")
    for key in _REQUIRED:
        if not isinstance(fields[key], (int, float)) or fields[key] <= 0:
            raise UnsupportedModelError(f"GGUF key {architecture}.{key} is no positive number")


def _vocab_size(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise UnsupportedModelError("GGUF tensor token_embd.weight is missing")
    return int(file.tensors["token_embd.weight"].shape[0])


def _rope_parameters(fields: dict[str, Any]) -> dict[str, Any]:
    kind = str(fields.get("rope.scaling.type", "none"))
    params: dict[str, Any] = {
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": fields.get("rope.freq_base", 10_000.0),
    }
    for key, name in (
        ("rope.scaling.factor", "factor"),
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ("rope.scaling.attn_factor", "attention_factor"),
    ):
        if fields.get(key):
            params[name] = fields[key]
    return params


def _rope_factors(file: GgufFile, config: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """The same rotation in Hugging Face's terms: factors for all lengths, nothing sharpened."""
    info = file.tensors.get(ROPE_FACTORS)
    if info is None:
        return {}
    if info.ggml_type.name != "F32" or tuple(info.shape) != (head_dim // 2,):
        raise UnsupportedModelError(
            f"GGUF tensor {ROPE_FACTORS} is not {head_dim // 2} numbers of type F32"
        )
    values = np.frombuffer(file.tensor_bytes(info).tobytes(), dtype="<f4")
    if not bool((np.isfinite(values) & (values > 0)).all()):
        raise UnsupportedModelError(f"GGUF tensor {ROPE_FACTORS} holds no positive factors")
    factors = [float(value) for value in values]
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }
