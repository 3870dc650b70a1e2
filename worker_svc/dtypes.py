"""Which type weights and activations have, from `--dtype` and `--batch-invariant`.

Owns what `auto` becomes on this processor. Called by the model runner once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pagewire.engine_config import ModelConfig

_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_CUDA_DTYPES = _DTYPES | {"float16": torch.float16}


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def select_dtype(config: ModelConfig) -> torch.dtype:
    """The torch type of a model on a CPU.

    Raises:
        ValueError: The type is not implemented, or cannot be batch-invariant.
    """
    if config.dtype == "auto":
        # Measured at 1 to 128 rows: 1.3 to 2 times as fast as float32 with the instructions,
        # several times slower without.
        wide = config.batch_invariant or not multiplies_bfloat16()
        return torch.float32 if wide else torch.bfloat16
    if config.dtype not in _DTYPES:
        raise ValueError(
            f"dtype {config.dtype} is not implemented on a CPU: use bfloat16 or float32"
        )
    if config.batch_invariant and config.dtype != "float32":
        raise ValueError(
            f"dtype {config.dtype} is not batch-invariant on a CPU: "
            "use float32, or leave --batch-invariant out"
        )
    return _DTYPES[config.dtype]


def select_cuda_dtype(config: ModelConfig, fields: Mapping[str, Any]) -> torch.dtype:
    """The torch type of a model on a CUDA device.

    `auto` is the checkpoint's own 16-bit type. float32 becomes bfloat16, as in vLLM, and so does
    what has no type of its own (GGUF).

    Args:
        config: What is asked for.
        fields: Of the model's config.json.

    Raises:
        ValueError: It cannot be batch-invariant.
    """
    if config.batch_invariant:
        raise ValueError(
            "batch_invariant holds on CPUs alone, as cuBLAS adds up in an order of its own for "
            "each number of rows: leave --batch-invariant out, or use --device cpu"
        )
    if config.dtype != "auto":
        return _CUDA_DTYPES[config.dtype]
    stored = fields.get("dtype") or fields.get("torch_dtype")
    return torch.float16 if stored == "float16" else torch.bfloat16
