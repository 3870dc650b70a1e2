"""The arrays of a step as tensors on the device.

All integers of a step go over in one copy. Knows nothing of requests: it turns `StepInputs` into
what a model and an attention backend take.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.attention.base import AttentionMetadata
from worker_svc.device import put
from worker_svc.input_batch import StepInputs


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What one forward pass reads."""

    token_ids: torch.Tensor
    """[num_tokens] int64."""
    positions: torch.Tensor
    """[num_tokens] int64."""
    attention: AttentionMetadata

    @classmethod
    def of(cls, inputs: StepInputs, device: torch.device) -> StepTensors:
        arrays = (
            inputs.token_ids,
            inputs.positions,
            inputs.slot_mapping,
            inputs.block_tables.reshape(-1),
        )
        if device.type == "cpu":
            parts = tuple(torch.from_numpy(array) for array in arrays)
        else:
            sizes = [len(array) for array in arrays]
            parts = torch.split(put(np.concatenate(arrays), device), sizes)
        token_ids, positions, slots, tables = parts
        return cls(
            token_ids,
            positions,
            AttentionMetadata(
                slot_mapping=slots,
                block_tables=tables.view(inputs.block_tables.shape),
                seq_lens=inputs.seq_lens,
                query_start_loc=inputs.query_start_loc,
                num_single_rows=inputs.num_single_rows,
            ),
        )
