"""Single tokens through block tables that stay where they are: what a graph records.

Nothing here depends on a number that the host would have to know, so the same calls serve every
step of a size: lengths and tables are read on the device. The shapes of calls are those of plain
steps, as the kernel is compiled for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from worker_svc.attention.base import DecodeTensors
from worker_svc.attention.xformers_cache import XformersCache
from worker_svc.attention.xformers_calls import power_of_two, table_width
from worker_svc.attention.xformers_operators import XformersOperators


@dataclass(frozen=True, slots=True)
class _WindowCall:
    """What layers with the same window share; the tensors are written anew in each step."""

    window: int | None
    tables: torch.Tensor
    """[num_pieces, width] int32."""
    starts: torch.Tensor
    """[num_pieces + 1] int32, first key that a row sees in its table; of windows alone."""
    ends: torch.Tensor
    """[num_pieces] int32, behind the last one."""
    bias: Any


class XformersDecodeAttention:
    """One query a row; rows of padding see no keys and give zeros."""

    def __init__(
        self, cache: XformersCache, operators: XformersOperators, tensors: DecodeTensors
    ) -> None:
        self._cache = cache
        self._operators = operators
        self._tensors = tensors
        self._num_rows = len(tensors.seq_lens)
        self._num_pieces = power_of_two(self._num_rows)
        windows = set(cache.spec.sliding_windows)
        self._calls = {window: self._make_call(window) for window in windows}
        self._slots = tensors.slot_mapping
        self._is_padding = tensors.seq_lens == 0

    def refresh(self) -> None:
        slots = self._tensors.slot_mapping
        self._slots = torch.where(slots < 0, self._cache.spare_slot, slots).long()
        self._is_padding = (self._tensors.seq_lens == 0)[:, None, None]
        for call in self._calls.values():
            self._fill(call)

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        cache, spec = self._cache, self._cache.spec
        cache.write(layer, self._slots, key, value)
        keys, values = cache.all_blocks(layer)
        missing = self._num_pieces - self._num_rows
        queries = functional.pad(cache.queries(query), (0, 0, 0, 0, 0, 0, 0, missing))
        attended = self._operators.attend_paged(
            queries[None], keys, values, self._calls[spec.sliding_windows[layer]].bias, spec.scale
        )
        heads = cache.heads(attended, self._num_rows)
        return heads.masked_fill(self._is_padding, 0.0).flatten(1)

    def _make_call(self, window: int | None) -> _WindowCall:
        tables, size = self._tensors.block_tables, self._cache.block_size
        num_pieces, width, device = self._num_pieces, tables.shape[1], tables.device
        if window is not None:
            # The window may begin at any place of a block.
            num_blocks = (window + size - 2) // size + 1
            width = min(width, table_width(num_blocks, size, pad=True))
        own_tables = torch.zeros(num_pieces, width, dtype=torch.int32, device=device)
        starts = torch.zeros(num_pieces + 1, dtype=torch.int32, device=device)
        ends = torch.zeros(num_pieces, dtype=torch.int32, device=device)
        zeros = [0] * num_pieces
        if window is None:
            bias = self._operators.paged_bias(1, zeros, own_tables, size)
        else:
            bias = self._operators.paged_window_bias(zeros, zeros, own_tables, size)
            bias.k_seqinfo.seqstart = starts
        bias.k_seqinfo.seqlen = ends
        return _WindowCall(window, own_tables, starts, ends, bias)

    def _fill(self, call: _WindowCall) -> None:
        tables, seq_lens = self._tensors.block_tables, self._tensors.seq_lens
        rows, size = slice(0, self._num_rows), self._cache.block_size
        if call.window is None:
            call.tables[rows] = tables
            call.ends[rows] = seq_lens
            return
        first = (seq_lens - call.window).clamp_(min=0)
        skipped = first // size
        columns = torch.arange(call.tables.shape[1], device=tables.device) + skipped[:, None]
        columns = columns.clamp_(max=tables.shape[1] - 1).long()
        call.tables[rows] = tables.gather(1, columns)
        call.starts[rows] = first - skipped * size
        call.ends[rows] = seq_lens - skipped * size
