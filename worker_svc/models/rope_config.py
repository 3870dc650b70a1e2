"""Rotary embedding parameters, in one form for old and new config.json files.

Owns the names of the scaling kinds and which parameters each needs. Knows no tensors:
`layers.rotary` computes frequencies from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_NEEDS_FACTOR = ("linear", "dynamic", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """`rope_type` and what it needs; names are those of Hugging Face's `rope_parameters`."""

    rope_type: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    """Positions that the model was trained on before its context was extended."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> RopeConfig:
        """Reads `rope_parameters`, or the older `rope_scaling` beside `rope_theta`.

        Raises:
            ValueError: A kind or a parameter that is not implemented, or one that is missing.
        """
        params = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
        rope_type = str(params.get("rope_type") or params.get("type") or "default")
        rope_type = {"su": "longrope", "ntk": "dynamic"}.get(rope_type, rope_type)
        if rope_type not in ROPE_TYPES:
            known = ", ".join(ROPE_TYPES)
            raise ValueError(f"model config: rope_type {rope_type!r} is not one of {known}")
        _refuse_partial_rotation(config, params)
        if rope_type in _NEEDS_FACTOR and params.get("factor") is None:
            raise ValueError(f"model config: rope_type {rope_type!r} needs `factor`")
        return cls._from_params(config, params, rope_type)

    @classmethod
    def _from_params(
        cls, config: Mapping[str, Any], params: Mapping[str, Any], rope_type: str
    ) -> RopeConfig:
        max_positions = int(config["max_position_embeddings"])
        original = (
            params.get("original_max_position_embeddings")
            or config.get("original_max_position_embeddings")
            or max_positions
        )
        optional = ("mscale", "mscale_all_dim", "attention_factor")
        return cls(
            rope_type=rope_type,
            theta=float(params.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            factor=float(params.get("factor") or max_positions / original),
            original_max_position_embeddings=int(original),
            low_freq_factor=float(params.get("low_freq_factor", 1.0)),
            high_freq_factor=float(params.get("high_freq_factor", 4.0)),
            beta_fast=float(params.get("beta_fast") or 32.0),
            beta_slow=float(params.get("beta_slow") or 1.0),
            truncate=bool(params.get("truncate", True)),
            short_factor=tuple(float(x) for x in params.get("short_factor") or ()),
            long_factor=tuple(float(x) for x in params.get("long_factor") or ()),
            **{name: float(params[name]) for name in optional if params.get(name) is not None},
        )

    def has_long_factors(self, max_model_len: int) -> bool:
        """Whether `longrope` takes the factors for sequences beyond the original context.

        An engine that serves longer ones takes them for every sequence, so it gives other tokens.
        """
        is_beyond = max_model_len > self.original_max_position_embeddings
        return self.rope_type == "longrope" and is_beyond

    def max_model_len(self, max_position_embeddings: int) -> int:
        """Longest sequence that the scaling is meant for, in tokens."""
        if self.rope_type in ("linear", "dynamic"):
            return int(max_position_embeddings * self.factor)
        if self.rope_type == "yarn":
            return max(
                max_position_embeddings, int(self.original_max_position_embeddings * self.factor)
            )
        return max_position_embeddings


def _refuse_partial_rotation(config: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    for source in (config, params):
        partial = source.get("partial_rotary_factor")
        if partial is not None and partial != 1.0:
            raise ValueError(f"model config: partial_rotary_factor {partial} is not implemented")
