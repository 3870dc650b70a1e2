"""Attention over `DecodeTensors` for a backend that has none of its own: a plain step each time.

It reads lengths back from the device, so no graph can record it.
"""

from __future__ import annotations

import torch

from worker_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    DecodeTensors,
    StepAttention,
)


class DecodeSteps:
    """A step of the backend for each `refresh`."""

    def __init__(self, backend: AttentionBackend, tensors: DecodeTensors) -> None:
        self._backend = backend
        self._tensors = tensors
        self._step: StepAttention | None = None

    def refresh(self) -> None:
        tensors = self._tensors
        seq_lens = [length for length in tensors.seq_lens.tolist() if length]
        num_rows = len(seq_lens)
        self._step = self._backend.begin_step(
            AttentionMetadata(
                slot_mapping=tensors.slot_mapping.long(),
                block_tables=tensors.block_tables[:num_rows].long(),
                seq_lens=seq_lens,
                query_start_loc=range(num_rows + 1),
                num_single_rows=num_rows,
            )
        )

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        if self._step is None:
            raise RuntimeError("refresh comes first")
        return self._step(layer, query, key, value)
