"""Which type weights and activations have, from `--dtype` and `--batch-invariant`.

Owns what `auto` becomes on this processor. Called by the model runner once.
"""

from __future__ import annotations

import torch

from pagewire.engine_config import ModelConfig

_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def select_dtype(config: ModelConfig) -> torch.dtype:
    """The torch type of a model on a CPU.

    Raises:
        ValueError: The type is not implemented, or cannot be batch-invariant.
    """
    if config.dtype == "auto":
        # Measured at 1 to 128 rows: 1.3 to 2 times as fast as float32 with the instructions,
        # several times slower without.
        wide = config.batch_invariant or not torch.cpu._is_avx512_bf16_supported()
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
