"""Which type weights and activations have, from `--dtype`.

Owns what `auto` becomes on this processor. Called by the model runner once.
"""

from __future__ import annotations

import torch

from pagewire.engine_config import Dtype

_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def select_dtype(name: Dtype) -> torch.dtype:
    """The torch type of a `--dtype` value.

    Raises:
        ValueError: The type is not implemented on a CPU.
    """
    if name == "auto":
        return torch.bfloat16 if _has_bfloat16_instructions() else torch.float32
    if name not in _DTYPES:
        raise ValueError(f"dtype {name} is not implemented on a CPU: use bfloat16 or float32")
    return _DTYPES[name]


def _has_bfloat16_instructions() -> bool:
    """Without them bfloat16 is emulated, several times slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported())
