"""Rotary position embeddings with every scaling kind of `RopeConfig`.

Owns the tables of cosines and sines. An entry is a function of its position alone, never of the
batch or of how long the sequence was when the token came: chunked prefill, prefix hits and
recomputation then give the same keys. Two kinds differ from transformers for that reason:
`dynamic` scales by the token's own position (transformers: by the longest sequence of the batch),
and `longrope` chooses its factors by the engine's max_model_len (as vLLM V1 does).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from worker_svc.models.rope_config import RopeConfig


class RotaryEmbedding(nn.Module):
    """Tables for positions below `max_model_len`."""

    cos: torch.Tensor  # [max_model_len, head_dim / 2], in the type of activations
    sin: torch.Tensor

    def __init__(
        self,
        rope: RopeConfig,
        head_dim: int,
        max_position_embeddings: int,
        max_model_len: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        positions = torch.arange(max_model_len, dtype=torch.float32)
        if rope.rope_type == "dynamic":
            frequencies = _dynamic_inv_freq(rope, head_dim, max_position_embeddings, positions)
        else:
            frequencies = inverse_frequencies(rope, head_dim, max_model_len)
        angles = positions[:, None] * frequencies  # [max_model_len, head_dim / 2]
        scale = attention_scaling(rope)
        self.register_buffer("cos", (angles.cos() * scale).to(dtype), persistent=False)
        self.register_buffer("sin", (angles.sin() * scale).to(dtype), persistent=False)

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of `positions` [num_tokens], each [num_tokens, 1, head_dim / 2]."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates [num_tokens, num_heads, head_dim] by the rows of `RotaryEmbedding.rows`."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int, max_model_len: int) -> torch.Tensor:
    """Inverse frequencies [head_dim / 2] of every kind but `dynamic`, float32."""
    inv_freq: torch.Tensor = 1.0 / rope.theta ** _exponents(head_dim)
    if rope.rope_type == "linear":
        return inv_freq / rope.factor
    if rope.rope_type == "llama3":
        return _llama3_inv_freq(rope, inv_freq)
    if rope.rope_type == "yarn":
        return _yarn_inv_freq(rope, head_dim)
    if rope.rope_type == "longrope":
        return _longrope_inv_freq(rope, head_dim, max_model_len)
    return inv_freq


def attention_scaling(rope: RopeConfig) -> float:
    """Factor on cosines and sines, by which `yarn` and `longrope` sharpen attention."""
    if rope.rope_type not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1.0:
        return 1.0
    if rope.rope_type == "longrope":
        length = math.log(rope.original_max_position_embeddings)
        return math.sqrt(1 + math.log(rope.factor) / length)
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_mscale(rope.factor, rope.mscale) / _yarn_mscale(
            rope.factor, rope.mscale_all_dim
        )
    return _yarn_mscale(rope.factor, 1.0)


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _dynamic_inv_freq(
    rope: RopeConfig, head_dim: int, max_position_embeddings: int, positions: torch.Tensor
) -> torch.Tensor:
    """Inverse frequencies of each position, [max_model_len, head_dim / 2]."""
    lengths = torch.clamp(positions + 1, min=max_position_embeddings).double()
    growth = rope.factor * lengths / max_position_embeddings - (rope.factor - 1)
    bases = (rope.theta * growth ** (head_dim / (head_dim - 2))).float()
    inv_freq: torch.Tensor = 1.0 / bases[:, None] ** _exponents(head_dim)
    return inv_freq


def _llama3_inv_freq(rope: RopeConfig, inv_freq: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between are blended."""
    length = rope.original_max_position_embeddings
    wavelengths = 2 * math.pi / inv_freq
    smooth = (length / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * inv_freq / rope.factor + smooth * inv_freq
    stretched = torch.where(
        wavelengths > length / rope.low_freq_factor, inv_freq / rope.factor, blended
    )
    return torch.where(wavelengths < length / rope.high_freq_factor, inv_freq, stretched)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0


def _yarn_inv_freq(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Interpolates slow dimensions, keeps fast ones, with a ramp between the two."""
    length = rope.original_max_position_embeddings

    def dimension_of(num_rotations: float) -> float:
        turns = length / (num_rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # A ramp of no width would divide by zero.
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = rope.theta ** _exponents(head_dim)
    keep = 1 - ramp
    interpolated: torch.Tensor = 1.0 / (rope.factor * frequencies)
    extrapolated: torch.Tensor = 1.0 / frequencies
    return interpolated * (1 - keep) + extrapolated * keep


def _longrope_inv_freq(rope: RopeConfig, head_dim: int, max_model_len: int) -> torch.Tensor:
    is_long = rope.has_long_factors(max_model_len)
    name = "long_factor" if is_long else "short_factor"
    factors = rope.long_factor if is_long else rope.short_factor
    if len(factors) != head_dim // 2:
        raise ValueError(
            f"model config: longrope {name} has {len(factors)} entries, needs {head_dim // 2}"
        )
    inv_freq: torch.Tensor = 1.0 / (torch.tensor(factors) * rope.theta ** _exponents(head_dim))
    return inv_freq
