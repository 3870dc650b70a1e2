"""The tensors that graphs read: one piece of memory, written in one copy before each replay.

Every size of graph has its own view of the same memory. Rows that a step does not fill are padding:
token 0 at position 0, slot -1, no keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.attention.base import DecodeTensors
from worker_svc.device import put
from worker_svc.graphs.sizes import GraphSize
from worker_svc.input_batch import PADDING_SLOT, StepInputs

_COLUMNS = 4
"""Token ids, positions, slots, lengths; the block tables follow."""


@dataclass(frozen=True, slots=True)
class GraphView:
    """The memory as a graph of one size sees it."""

    token_ids: torch.Tensor
    """[num_rows] int32."""
    positions: torch.Tensor
    """[num_rows] int32."""
    attention: DecodeTensors


class GraphInputs:
    """Memory for graphs up to a size."""

    def __init__(self, largest: GraphSize, device: torch.device) -> None:
        self._device = device
        self._memory = torch.zeros(_num_integers(largest), dtype=torch.int32, device=device)

    def view(self, size: GraphSize) -> GraphView:
        num_rows = size.num_rows
        memory = self._memory[: _num_integers(size)]
        token_ids, positions, slots, seq_lens = memory[: _COLUMNS * num_rows].view(_COLUMNS, -1)
        tables = memory[_COLUMNS * num_rows :].view(num_rows, size.width)
        return GraphView(token_ids, positions, DecodeTensors(slots, tables, seq_lens))

    def write(self, inputs: StepInputs, size: GraphSize) -> None:
        """Put a step of single tokens there, padded to `size`; does not wait for the device."""
        integers = np.zeros(_num_integers(size), dtype=np.int32)
        token_ids, positions, slots, seq_lens = integers[: _COLUMNS * size.num_rows].reshape(
            _COLUMNS, -1
        )
        num_rows, num_blocks = inputs.block_tables.shape
        token_ids[:num_rows] = inputs.token_ids[:num_rows]
        positions[:num_rows] = inputs.positions[:num_rows]
        slots.fill(PADDING_SLOT)
        slots[:num_rows] = inputs.slot_mapping[:num_rows]
        seq_lens[:num_rows] = inputs.seq_lens
        tables = integers[_COLUMNS * size.num_rows :].reshape(size.num_rows, size.width)
        tables[:num_rows, :num_blocks] = inputs.block_tables
        self._memory[: len(integers)].copy_(put(integers, self._device), non_blocking=True)

    def clear(self, size: GraphSize) -> None:
        """All rows are padding, as while a graph is recorded."""
        self._memory.zero_()
        self.view(size).attention.slot_mapping.fill_(PADDING_SLOT)


def _num_integers(size: GraphSize) -> int:
    return size.num_rows * (_COLUMNS + size.width)
