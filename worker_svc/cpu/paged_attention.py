"""Attention over the paged cache by the kernels, as the backend `cpu`.

Owns the cache, float16, keys transposed within their blocks, and the arrays of a step. A query adds
up its keys in one order, whatever chunk, batch or thread it is computed in. Knows no models: a
packed one takes the step's arrays from `CpuStepAttention` and runs all layers in one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.attention.base import AttentionMetadata, AttentionSpec, DecodeTensors
from worker_svc.attention.decode_steps import DecodeSteps
from worker_svc.cpu.kernels import Kernels, Pool
from worker_svc.cpu.structs import Cache, Step
from worker_svc.cpu.zeroed_memory import zeros

Ints = npt.NDArray[np.int64]

CACHE_DTYPE = torch.float16
LANES = 16
"""Sizes of heads and blocks are multiples of it: the widest variant's."""


def attention_problem(head_dim: int, block_size: int) -> str | None:
    """Why the kernels cannot do attention over such heads and blocks; None: they can."""
    if head_dim % LANES:
        return f"heads have {head_dim} values, no multiple of {LANES}"
    if block_size % LANES:
        return f"--block-size {block_size} is no multiple of {LANES}"
    return None


class CpuAttentionBackend:
    """Owner of the cache [num_layers, 2, num_blocks, num_kv_heads * head_dim * block_size]."""

    can_capture = False

    def __init__(self, kernels: Kernels, pool: Pool, spec: AttentionSpec) -> None:
        self.kernels = kernels
        self.pool = pool
        self.spec = spec
        self.data: torch.Tensor | None = None
        self._cache = Cache()

    def kv_bytes_per_block(self, block_size: int) -> int:
        return self.spec.kv_bytes_per_block(block_size, CACHE_DTYPE)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        self.free_kv_cache()
        spec = self.spec
        problem = attention_problem(spec.head_dim, block_size)
        if problem is not None:
            raise ValueError(f"attention_backend cpu: {problem}")
        block = spec.num_kv_heads * spec.head_dim * block_size
        self.data = zeros((spec.num_layers, 2, num_blocks, block), CACHE_DTYPE)
        self._cache = Cache(
            self.data.data_ptr(), num_blocks, block_size, spec.num_kv_heads, spec.head_dim
        )

    def free_kv_cache(self) -> None:
        self.data, self._cache = None, Cache()

    def begin_step(self, metadata: AttentionMetadata) -> CpuStepAttention:
        if self.data is None:
            raise RuntimeError("the KV cache is not allocated: call allocate_kv_cache first")
        return CpuStepAttention(self, self.data, self._cache, metadata)

    def prepare_decode(self, tensors: DecodeTensors) -> DecodeSteps:
        return DecodeSteps(self, tensors)


class CpuStepAttention:
    """One step: its arrays, and attention layer by layer for whoever has no plan."""

    def __init__(
        self,
        backend: CpuAttentionBackend,
        data: torch.Tensor,
        cache: Cache,
        metadata: AttentionMetadata,
    ) -> None:
        self._backend = backend
        self.data = data  # The cache lives as long as the step.
        self.cache = cache
        self.num_tokens = metadata.query_start_loc[-1]
        """Without padding, which comes last."""
        self._slots = metadata.slot_mapping.contiguous()
        self._tables = metadata.block_tables.contiguous()
        self._query_starts = np.asarray(metadata.query_start_loc, dtype=np.int64)
        self._seq_lens = metadata.seq_lens

    def struct(self, token_ids: torch.Tensor | None, positions: torch.Tensor) -> Step:
        """The step for the library; good while it and its arguments live.

        Args:
            token_ids: [num_tokens] int64, contiguous; None where they are not needed.
            positions: The same.
        """
        return Step(
            num_tokens=self.num_tokens,
            num_rows=len(self._seq_lens),
            token_ids=None if token_ids is None else token_ids.data_ptr(),
            positions=positions.data_ptr(),
            slots=self._slots.data_ptr(),
            block_tables=self._tables.data_ptr(),
            query_starts=self._query_starts.ctypes.data,
            table_width=self._tables.shape[1],
        )

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        backend, spec = self._backend, self._backend.spec
        wide = [tensor.float().contiguous() for tensor in (query, key, value)]
        output = torch.zeros_like(wide[0])
        positions = torch.from_numpy(_positions(self._query_starts, self._seq_lens))
        backend.kernels.native.pw_attend(
            backend.kernels.handle,
            backend.pool.handle,
            ctypes.byref(self.cache),
            layer,
            ctypes.byref(self.struct(None, positions)),
            spec.num_heads,
            spec.sliding_windows[layer] or 0,
            spec.scale,
            *(tensor.data_ptr() for tensor in wide),
            output.data_ptr(),
        )
        return output.flatten(1).to(query.dtype)


def _positions(query_starts: Ints, seq_lens: Sequence[int]) -> Ints:
    """Position of each token of a step."""
    counts = np.diff(query_starts)
    # A row's last token is at its length less one.
    shifts = np.asarray(seq_lens, dtype=np.int64) - query_starts[1:]
    return np.arange(query_starts[-1], dtype=np.int64) + np.repeat(shifts, counts)
