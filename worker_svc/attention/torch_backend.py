"""The plain reference backend: paged attention in PyTorch operations, on any device.

Keys are reduced in a fixed order for each query: tiles of `TILE_TOKENS` positions from the start of
the sequence, joined by an online softmax in float32. A trailing tile, or the padding of one, adds
exact zeros, so neither batch mates nor chunk borders change which sums a query takes; no GEMM has
fewer than `MIN_GEMM_ROWS` rows. Single
queries (decode) run together over gathered tiles; a row of several (prefill) runs alone.
Positions that a row doesn't own are read from the null block, never from another request's slots:
a NaN that a failed request left in the cache reaches nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from worker_svc.attention.base import AttentionMetadata, AttentionSpec, DecodeTensors
from worker_svc.attention.decode_steps import DecodeSteps
from worker_svc.attention.products import invariant_bmm

TILE_TOKENS = 128
"""Keys of one tile: few enough for a GEMM over them not to be split in parts."""
TILE_PADDING = 64
"""Tiles are cut to a multiple of this: within it, vectorized sums keep their lanes."""
MIN_GEMM_ROWS = 4
"""Below this many rows BLAS takes other kernels, which add in another order."""
CPU = torch.device("cpu")
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of two batches of matrices."""
_LOWEST = -1e30
"""Starts the running maximum: finite, so that a tile which is masked as a whole gives exp(-inf)."""


@dataclass(frozen=True, slots=True)
class KVTile:
    """Keys [start, start + width) of `num_rows` rows, and where they lie in a layer's cache."""

    start: int
    width: int
    gather_index: torch.Tensor
    """[num_rows * num_kv_heads * width] int64 into a cache viewed as [-1, head_dim]."""
    owned: torch.Tensor
    """[num_rows, 1, width] bool: the position is below the row's length."""


class TorchAttentionBackend:
    """KV cache as one tensor a layer and kind: [num_blocks, block_size, num_kv_heads, head_dim]."""

    can_capture = False
    """The shapes of a step follow from its lengths."""

    def __init__(
        self,
        spec: AttentionSpec,
        dtype: torch.dtype,
        device: torch.device = CPU,
        *,
        batch_invariant: bool = False,
    ) -> None:
        self._spec = spec
        self._dtype = dtype
        # Among several threads; one alone takes each matrix whole.
        is_divided = torch.get_num_threads() > 1
        self._product = invariant_bmm if batch_invariant and is_divided else torch.bmm
        self._device = device
        self._block_size = 0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def kv_bytes_per_block(self, block_size: int) -> int:
        return self._spec.kv_bytes_per_block(block_size, self._dtype)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        self.free_kv_cache()
        spec = self._spec
        shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        # Zeros, since padding is read from block 0, and 0 * NaN would not be 0.
        self._keys, self._values = (
            [
                torch.zeros(shape, dtype=self._dtype, device=self._device)
                for _ in range(spec.num_layers)
            ]
            for _ in range(2)
        )
        self._block_size = block_size

    def free_kv_cache(self) -> None:
        self._keys, self._values = [], []

    def begin_step(self, metadata: AttentionMetadata) -> TorchStepAttention:
        if not self._keys:
            raise RuntimeError("the KV cache is not allocated: call allocate_kv_cache first")
        return TorchStepAttention(
            self._spec,
            self._block_size,
            self._keys,
            self._values,
            metadata,
            self._product,
        )

    def prepare_decode(self, tensors: DecodeTensors) -> DecodeSteps:
        return DecodeSteps(self, tensors)


class TorchStepAttention:
    """One step over the caches of `TorchAttentionBackend`."""

    def __init__(
        self,
        spec: AttentionSpec,
        block_size: int,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        metadata: AttentionMetadata,
        product: Product,
    ) -> None:
        self._spec = spec
        self._product = product
        self._block_size = block_size
        self._keys = keys
        self._values = values
        # Padding tokens, which have no slot, come last.
        self._slots = metadata.slot_mapping[: metadata.query_start_loc[-1]]
        self._device = self._slots.device
        self._seq_lens = metadata.seq_lens
        self._starts = metadata.query_start_loc
        self._num_single = metadata.num_single_rows
        self._tiles = [
            list(self._make_tiles(rows, metadata)) for rows in self._row_groups(len(self._seq_lens))
        ]

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        self._write(self._keys[layer], key)
        self._write(self._values[layer], value)
        output = torch.zeros_like(query)  # Padding tokens belong to no row and stay zero.
        groups = self._row_groups(len(self._seq_lens))
        for rows, tiles in zip(groups, self._tiles, strict=True):
            tokens = slice(self._starts[rows.start], self._starts[rows.stop])
            if rows.stop <= self._num_single:
                output[tokens] = self._attend_single(layer, query[tokens], tiles)
            else:
                first_position = self._seq_lens[rows.start] - (tokens.stop - tokens.start)
                output[tokens] = self._attend_row(layer, query[tokens], tiles, first_position)
        return output.flatten(1)

    def _row_groups(self, num_rows: int) -> list[slice]:
        """All single-token rows as one group, then each other row alone."""
        single = [slice(0, self._num_single)] if self._num_single else []
        return single + [slice(row, row + 1) for row in range(self._num_single, num_rows)]

    def _write(self, cache: torch.Tensor, new: torch.Tensor) -> None:
        rows = new[: len(self._slots)].flatten(1)
        cache.view(-1, rows.shape[1]).index_copy_(0, self._slots, rows)

    def _make_tiles(self, rows: slice, metadata: AttentionMetadata) -> Iterator[KVTile]:
        lengths, device = self._seq_lens[rows], self._device
        seq_lens = torch.tensor(lengths, device=device)
        tables = metadata.block_tables[rows]
        heads = torch.arange(self._spec.num_kv_heads, device=device)[:, None]
        longest = lengths[0]
        for start in range(0, longest, TILE_TOKENS):
            num_rows = sum(length > start for length in lengths)  # A prefix: lengths fall.
            width = min(TILE_TOKENS, _round_up(longest - start, TILE_PADDING))
            positions = torch.arange(start, start + width, device=device)
            owned = positions < seq_lens[:num_rows, None]  # [num_rows, width]
            blocks = (positions // self._block_size).clamp(max=tables.shape[1] - 1)
            slots = tables[:num_rows, blocks] * self._block_size + positions % self._block_size
            slots = torch.where(owned, slots, 0)
            index = slots[:, None, :] * self._spec.num_kv_heads + heads
            yield KVTile(start, width, index.flatten(), owned[:, None, :])

    def _gather(self, cache: torch.Tensor, tile: KVTile) -> torch.Tensor:
        """Keys or values of a tile, [num_rows * num_kv_heads, width, head_dim] float32."""
        head_dim = self._spec.head_dim
        flat = cache.view(-1, head_dim).index_select(0, tile.gather_index)
        return flat.view(-1, tile.width, head_dim).float()

    def _scores(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Scaled and capped, [batch, rows, width] of [batch, rows, d] and [batch, width, d]."""
        scores = self._product(queries, keys.transpose(1, 2)) * self._spec.scale
        softcap = self._spec.softcap
        return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)

    def _attend_single(self, layer: int, query: torch.Tensor, tiles: list[KVTile]) -> torch.Tensor:
        """Rows of one query each: [num_rows, num_heads, head_dim] in and out."""
        spec = self._spec
        queries = _pad_rows(query.view(-1, spec.group_size, spec.head_dim).float())
        state = _OnlineSoftmax(queries, self._product)
        window = spec.sliding_windows[layer]
        seq_lens = torch.tensor(self._seq_lens[: self._num_single], device=self._device)
        positions = seq_lens[:, None, None] - 1
        for tile in tiles:
            visible = tile.owned  # [num_rows, 1, width]
            num_rows = visible.shape[0]
            if window is not None:
                keys = torch.arange(tile.start, tile.start + tile.width, device=self._device)
                visible = visible & (keys > positions[:num_rows] - window)
            hidden = ~visible[:, None].expand(-1, spec.num_kv_heads, -1, -1).flatten(0, 1)
            part = slice(0, num_rows * spec.num_kv_heads)
            keys = self._gather(self._keys[layer], tile)
            values = self._gather(self._values[layer], tile)
            scores = self._scores(queries[part], keys)
            state.add((part, slice(None)), scores.masked_fill_(hidden, -torch.inf), values)
        output = state.result()[:, : spec.group_size]
        return output.reshape(-1, spec.num_heads, spec.head_dim).to(query.dtype)

    def _attend_row(
        self, layer: int, query: torch.Tensor, tiles: list[KVTile], first_position: int
    ) -> torch.Tensor:
        """One row of several queries: [num_tokens, num_heads, head_dim] in and out."""
        spec, group = self._spec, self._spec.group_size
        num_tokens = query.shape[0]
        # [num_kv_heads, num_tokens * group, head_dim]: queries of a KV head are rows of one GEMM.
        queries = query.view(num_tokens, spec.num_kv_heads, group, spec.head_dim).transpose(0, 1)
        queries = _pad_rows(queries.flatten(1, 2).float())
        num_rows = queries.shape[1]
        state = _OnlineSoftmax(queries, self._product)
        window = spec.sliding_windows[layer]
        rows = torch.arange(num_rows, device=self._device)
        positions = first_position + rows[:, None] // group  # [num_rows, 1]
        for tile in tiles:
            last = tile.start + tile.width - 1
            if window is not None and last <= first_position - window:
                continue
            # Queries before the tile see nothing of it and are left out.
            first = min(max(0, tile.start - first_position) * group, num_rows - MIN_GEMM_ROWS)
            part = (slice(None), slice(first, None))
            values = self._gather(self._values[layer], tile)
            keys = self._gather(self._keys[layer], tile)
            scores = self._scores(queries[part], keys)
            if last > first_position or window is not None:
                key_positions = torch.arange(tile.start, last + 1, device=self._device)
                hidden = key_positions > positions[first:]
                if window is not None:
                    hidden = hidden | (key_positions <= positions[first:] - window)
                scores.masked_fill_(hidden, -torch.inf)
                values = _contain_non_finite(scores, values, hidden)
            state.add(part, scores, values)
        output = state.result()[:, : num_tokens * group]
        output = output.reshape(spec.num_kv_heads, num_tokens, group, spec.head_dim)
        return output.transpose(0, 1).reshape(num_tokens, -1, spec.head_dim).to(query.dtype)


class _OnlineSoftmax:
    """Softmax-weighted sum of values, tile by tile, for queries [batch, rows, head_dim]."""

    def __init__(self, queries: torch.Tensor, product: Product) -> None:
        self._product = product
        self._sums = torch.zeros_like(queries)
        self._maximum = queries.new_full((*queries.shape[:2], 1), _LOWEST)
        self._weights = torch.zeros_like(self._maximum)

    def add(self, part: tuple[slice, slice], scores: torch.Tensor, values: torch.Tensor) -> None:
        """Adds one tile for the queries of `part`; scores [b, r, width], values [b, width, d]."""
        before = self._maximum[part]
        maximum = torch.maximum(before, scores.amax(-1, keepdim=True))
        weights = scores.sub_(maximum).exp_()
        shrink = (before - maximum).exp_()
        self._weights[part] = self._weights[part] * shrink + weights.sum(-1, keepdim=True)
        self._sums[part] = self._sums[part] * shrink + self._product(weights, values)
        self._maximum[part] = maximum

    def result(self) -> torch.Tensor:
        return self._sums / self._weights


def _contain_non_finite(
    scores: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """Values for a sum over one tile in which a NaN reaches the queries that see it, no others.

    A weight of 0 times NaN is NaN: a draft of a row would spoil the queries before it.

    Args:
        scores: [batch, rows, width]; those of seen positions that are not finite become NaN.
        values: [batch, width, head_dim].
        hidden: [rows, width] bool: what a query does not see.
    """
    if bool(values.sum().isfinite()):
        return values
    finite = values.isfinite().all(-1)  # [batch, width]
    scores.masked_fill_(~finite[:, None] & ~hidden, torch.nan)
    return torch.where(finite[..., None], values, 0.0)


def _pad_rows(queries: torch.Tensor) -> torch.Tensor:
    """[batch, rows, head_dim] with zero rows up to `MIN_GEMM_ROWS`."""
    missing = MIN_GEMM_ROWS - queries.shape[1]
    return functional.pad(queries, (0, 0, 0, missing)) if missing > 0 else queries


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
