"""Tiny random models as GGUF files, converted as llama.cpp's converter does it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from pagewire.gguf import GgmlType
from tests.worker_svc import k_blocks
from worker_svc.weights.gguf_names import TOP_NAMES, is_stored_plus_1, layer_names

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    rope_factors: Floats | None = None,
    linear_type: str = "F32",
    vocabulary_type: str = "F32",
) -> None:
    """Writes transformers' `model`, with float32 tensors but for the matrices.

    Args:
        path: The file.
        model: A Llama, Qwen2 or Qwen3.
        architecture: GGUF's name of it.
        rope_factors: Stand where those of the model's rotation would.
        linear_type: GGML's type of the linear layers' weights.
        vocabulary_type: The same of the embedding and the head.
    """
    config = model.config
    head_dim = model.model.layers[0].self_attn.head_dim
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rotation = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rotation["rope_theta"])
    if architecture.startswith("gemma"):
        _add_gemma_keys(writer, config, architecture)
    writer.add_eos_token_id(config.eos_token_id)
    for name, tensor in model.state_dict().items():
        if architecture == "llama":
            tensor = _permute(name, tensor, config)
        elif is_stored_plus_1(name, architecture):
            tensor = tensor + 1
        kind = gguf.GGMLQuantizationType[_type(name, linear_type, vocabulary_type)]
        data = _quantize(tensor.numpy(), kind)
        writer.add_tensor(_gguf_name(name, architecture), data, raw_dtype=kind)
    if rotation["rope_type"] == "llama3":
        rope_factors = _llama3_factors(config) if rope_factors is None else rope_factors
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantize(weights: Floats, kind: gguf.GGMLQuantizationType) -> np.ndarray[Any, Any]:
    if kind.name.endswith("_K"):
        return k_blocks.encode(weights, GgmlType[kind.name])
    return gguf.quantize(weights, kind)


def _type(name: str, linear_type: str, vocabulary_type: str) -> str:
    if name.endswith("proj.weight"):
        return linear_type
    return vocabulary_type if name.endswith(("embed_tokens.weight", "lm_head.weight")) else "F32"


def _gguf_name(name: str, architecture: str) -> str:
    both = {**TOP_NAMES, **layer_names(architecture)}
    names = {ours: theirs for theirs, ours in both.items()}
    stem, _, parameter = name.rpartition(".")
    if stem in names:
        return f"{names[stem]}.{parameter}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{names[rest]}.{parameter}"


def _add_gemma_keys(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _permute(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Rows of Q and K from halves to pairs."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for projection, num_heads in heads.items():
        if projection in name:
            halves = tensor.reshape(num_heads, 2, -1, *tensor.shape[1:])
            return halves.transpose(1, 2).reshape(tensor.shape)
    return tensor


def _llama3_factors(config: Any) -> Floats:
    """By what each frequency is divided."""
    rope = config.rope_parameters
    low, high, factor = (rope[k] for k in ("low_freq_factor", "high_freq_factor", "factor"))
    length = rope["original_max_position_embeddings"]
    head_dim = config.head_dim
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < length / high:
            factors.append(1.0)
        elif wavelength > length / low:
            factors.append(factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)
