"""An attention backend under test, and sequences whose blocks are scattered over its cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from worker_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionSpec,
    DecodeTensors,
)

CPU = torch.device("cpu")
Part = tuple[int, int, int]
"""(sequence, start, end): tokens [start, end) of a sequence."""


@dataclass
class CachedSequence:
    """One request with all its queries, keys and values, [length, heads, head_dim] each."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    block_ids: list[int]


class PagedCache:
    """A backend with an empty cache, and the same random sequences for every backend."""

    def __init__(
        self,
        backend: AttentionBackend,
        spec: AttentionSpec,
        lengths: Sequence[int],
        *,
        block_size: int,
        num_blocks: int = 400,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        self.backend = backend
        self.device = device
        self.spec = spec
        self.block_size = block_size
        backend.allocate_kv_cache(num_blocks, block_size)
        torch.manual_seed(0)
        blocks = list(range(1, num_blocks))
        random.Random(0).shuffle(blocks)

        def random_heads(length: int, heads: int) -> torch.Tensor:
            return torch.randn(length, heads, spec.head_dim).to(device, dtype)

        self.sequences = [
            CachedSequence(
                random_heads(length, spec.num_heads),
                random_heads(length, spec.num_kv_heads),
                random_heads(length, spec.num_kv_heads),
                [blocks.pop() for _ in range(-(-length // block_size))],
            )
            for length in lengths
        ]

    def slots(self, index: int, start: int, end: int) -> list[int]:
        size, block_ids = self.block_size, self.sequences[index].block_ids
        return [block_ids[p // size] * size + p % size for p in range(start, end)]

    def step(self, parts: Sequence[Part], num_padding: int = 0) -> list[torch.Tensor]:
        """Computes the parts in one step; outputs in the order of the sorted parts."""
        parts = sorted(parts, key=lambda part: (part[2] - part[1] > 1, -part[2]))
        slots: list[int] = []
        starts = [0]
        widest = max(len(self.sequences[index].block_ids) for index, _, _ in parts)
        tables = torch.zeros(len(parts), widest, dtype=torch.int64)
        for row, (index, start, end) in enumerate(parts):
            block_ids = self.sequences[index].block_ids
            tables[row, : len(block_ids)] = torch.tensor(block_ids)
            slots += self.slots(index, start, end)
            starts.append(len(slots))
        attention = self.backend.begin_step(
            AttentionMetadata(
                slot_mapping=torch.tensor(slots + [-1] * num_padding, device=self.device),
                block_tables=tables.to(self.device),
                seq_lens=[end for _, _, end in parts],
                query_start_loc=starts,
                num_single_rows=sum(end - start == 1 for _, start, end in parts),
            )
        )
        columns = []
        for name in ("query", "key", "value"):
            rows = [getattr(self.sequences[i], name)[start:end] for i, start, end in parts]
            padding = rows[0].new_full((num_padding, *rows[0].shape[1:]), 1e4)
            columns.append(torch.cat([*rows, padding]))
        output = attention(0, *columns)
        assert not output[len(slots) :].any()
        outputs = [output[start:end] for start, end in pairwise(starts)]
        by_part = dict(zip(parts, outputs, strict=True))
        return [by_part[part] for part in sorted(by_part)]

    def decode(self, parts: Sequence[Part], num_rows: int, width: int) -> list[torch.Tensor]:
        """Computes single tokens through `DecodeTensors` of that size; in the order of `parts`.

        The rest of the rows is padding, whose output must be zero.
        """
        device = self.device
        tables = torch.zeros(num_rows, width, dtype=torch.int32)
        slots = torch.full((num_rows,), -1, dtype=torch.int32)
        seq_lens = torch.zeros(num_rows, dtype=torch.int32)
        for row, (index, start, end) in enumerate(parts):
            block_ids = self.sequences[index].block_ids
            tables[row, : len(block_ids)] = torch.tensor(block_ids)
            slots[row], seq_lens[row] = self.slots(index, start, end)[0], end
        tensors = DecodeTensors(
            torch.full_like(slots, -1).to(device),
            torch.zeros_like(tables).to(device),
            torch.zeros_like(seq_lens).to(device),
        )
        attention = self.backend.prepare_decode(tensors)
        # As graphs do: what is read comes after the attention over it was made.
        tensors.slot_mapping.copy_(slots)
        tensors.block_tables.copy_(tables)
        tensors.seq_lens.copy_(seq_lens)
        attention.refresh()
        columns = []
        for name in ("query", "key", "value"):
            rows = [getattr(self.sequences[i], name)[start:end] for i, start, end in parts]
            padding = rows[0].new_full((num_rows - len(parts), *rows[0].shape[1:]), 1e4)
            columns.append(torch.cat([*rows, padding]))
        output = attention(0, *columns)
        assert not output[len(parts) :].any()
        return list(output[: len(parts)].split(1))

    def expected(self, index: int) -> torch.Tensor:
        """Attention over the whole sequence at once, in float64."""
        sequence = self.sequences[index]
        length = sequence.query.shape[0]
        group = self.spec.group_size
        key = sequence.key.double().repeat_interleave(group, 1)
        value = sequence.value.double().repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", sequence.query.double(), key) * self.spec.scale
        distance = torch.arange(length)[:, None] - torch.arange(length)
        window = self.spec.sliding_windows[0]
        hidden = (distance < 0) | (distance >= (length if window is None else window))
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value).flatten(1).float()
