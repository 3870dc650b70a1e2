"""What an attention backend is: the interface between models and the paged KV cache.

A backend owns the KV cache of all layers of its rank. A model sees only a `StepAttention`, one call
a layer; the model runner sees `AttentionBackend`. Neither knows of requests, only of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What is the same in every step; `sliding_windows` has one entry for each layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_windows: Sequence[int | None]
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap) before the softmax (Gemma 2)."""

    @property
    def num_layers(self) -> int:
        return len(self.sliding_windows)

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads

    def kv_bytes_per_block(self, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block of keys and values over all layers."""
        return 2 * self.num_layers * block_size * self.num_kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where the tokens of a step lie. Row i is one request; its tokens are contiguous.

    Tokens after the last row's are padding: nothing is written for them and their output is zero.

    Rows with a single token come first, `num_single_rows` of them, in falling order of `seq_lens`:
    a backend treats them together.
    """

    slot_mapping: torch.Tensor
    """[num_tokens] int64: block_id * block_size + offset; -1 for padding, which is not written."""
    block_tables: torch.Tensor
    """[num_rows, max_num_blocks] int64; entries past a row's own blocks are 0, the null block."""
    seq_lens: Sequence[int]
    """For each row: tokens in the cache once this step's are written."""
    query_start_loc: Sequence[int]
    """num_rows + 1 offsets into the tokens of the step."""
    num_single_rows: int


@dataclass(frozen=True, slots=True)
class DecodeTensors:
    """A step of single tokens in tensors that stay where they are, for graphs that are replayed.

    What is written into them before a replay is what it computes. Padding rows come last.
    """

    slot_mapping: torch.Tensor
    """[num_rows] int32; -1 for padding, which is not written."""
    block_tables: torch.Tensor
    """[num_rows, width] int32, contiguous; filled up with 0, the null block."""
    seq_lens: torch.Tensor
    """[num_rows] int32, at most width blocks; 0 for padding, whose output is zero."""


class StepAttention(Protocol):
    """Attention of one step, one call for each layer in turn."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Writes keys and values, then attends causally.

        Args:
            layer: Index of the layer.
            query: [num_tokens, num_heads, head_dim], rotated.
            key: [num_tokens, num_kv_heads, head_dim], rotated.
            value: [num_tokens, num_kv_heads, head_dim].

        Returns:
            [num_tokens, num_heads * head_dim] in the type of `query`.
        """


class DecodeAttention(StepAttention, Protocol):
    """Attention over `DecodeTensors`, again and again."""

    def refresh(self) -> None:
        """Reads the tensors; comes before the first layer of each step, within a capture too."""


class AttentionBackend(Protocol):
    """Owner of the KV cache."""

    can_capture: bool
    """Its `DecodeAttention` waits for nothing from the device, so that a graph can record it."""

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block of keys and values over all layers."""

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Replaces the cache by an empty one; block 0 is never written and stays zero.

        A backend that can capture keeps the memory of a cache of the same size.
        """

    def free_kv_cache(self) -> None:
        """Gives the cache's memory back; idempotent."""

    def begin_step(self, metadata: AttentionMetadata) -> StepAttention:
        """Prepares what all layers of a step share. One step at a time."""

    def prepare_decode(self, tensors: DecodeTensors) -> DecodeAttention:
        """Attention over these tensors, good until the cache is freed."""
