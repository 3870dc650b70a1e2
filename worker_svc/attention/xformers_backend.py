"""Paged attention by xformers: the split-K operator through block tables, prefill over pages.

Decode, verification and short chunks go through the block tables; longer rows are computed over
keys gathered from their pages, or, where that kernel does not run (a CPU), in pieces through the
block tables. Owns the KV cache; which rows go where is in `xformers_plan`, the tensors of a step
are in `xformers_calls`, those of a graph in `xformers_decode`.

A query's keys are added up in tiles from the first position it sees, in splits of a fixed size: in
one order whatever the batch. Not so over gathered pages, where the kernel of the device decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from worker_svc.attention.base import AttentionMetadata, AttentionSpec, DecodeTensors
from worker_svc.attention.support import padded_head_dim
from worker_svc.attention.xformers_cache import XformersCache
from worker_svc.attention.xformers_calls import CallFactory, StepCalls
from worker_svc.attention.xformers_decode import XformersDecodeAttention
from worker_svc.attention.xformers_operators import XformersOperators
from worker_svc.attention.xformers_plan import plan_step


@dataclass(frozen=True, slots=True)
class XformersSettings:
    """What depends on the device."""

    device: torch.device
    gather_prefill: bool
    """Long rows by another kernel over gathered pages; else in pieces through block tables."""
    pad_calls: bool
    """Few shapes of calls, for a kernel that is compiled for each."""

    @classmethod
    def for_device(cls, device: torch.device) -> XformersSettings:
        on_cuda = device.type == "cuda"
        return cls(device, gather_prefill=on_cuda, pad_calls=on_cuda)


class XformersAttentionBackend:
    """KV cache of `XformersCache`, computed on by xformers."""

    can_capture = True

    def __init__(
        self,
        spec: AttentionSpec,
        dtype: torch.dtype,
        operators: XformersOperators,
        settings: XformersSettings,
    ) -> None:
        self._spec = spec
        self._dtype = dtype
        self._operators = operators
        self._settings = settings
        self._cache: XformersCache | None = None

    @property
    def cache(self) -> XformersCache:
        """The KV cache.

        Raises:
            RuntimeError: There is none.
        """
        if self._cache is None:
            raise RuntimeError("the KV cache is not allocated: call allocate_kv_cache first")
        return self._cache

    def kv_bytes_per_block(self, block_size: int) -> int:
        spec = self._spec
        padded = replace(spec, head_dim=padded_head_dim(spec.head_dim))
        return padded.kv_bytes_per_block(block_size, self._dtype)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        if self._cache is not None and self._cache.has_size(num_blocks, block_size):
            self._cache.clear()  # Graphs that were recorded over it stay good.
            return
        self.free_kv_cache()
        device = self._settings.device
        self._cache = XformersCache(self._spec, self._dtype, device, num_blocks, block_size)

    def free_kv_cache(self) -> None:
        self._cache = None

    def begin_step(self, metadata: AttentionMetadata) -> XformersStepAttention:
        cache = self.cache
        factory = CallFactory(
            self._operators,
            metadata.block_tables,
            cache.block_size,
            pad=self._settings.pad_calls,
        )
        calls = {}
        for window in set(self._spec.sliding_windows):
            plan = plan_step(
                metadata.seq_lens,
                metadata.query_start_loc,
                window=window,
                block_size=cache.block_size,
                gather=self._settings.gather_prefill,
            )
            calls[window] = factory.make(plan, window)
        num_tokens = metadata.query_start_loc[-1]
        slots = metadata.slot_mapping[:num_tokens]  # Padding tokens, which have none, come last.
        return XformersStepAttention(cache, self._operators, slots, calls)

    def prepare_decode(self, tensors: DecodeTensors) -> XformersDecodeAttention:
        return XformersDecodeAttention(self.cache, self._operators, tensors)


class XformersStepAttention:
    """One step over the cache of `XformersAttentionBackend`."""

    def __init__(
        self,
        cache: XformersCache,
        operators: XformersOperators,
        slots: torch.Tensor,
        calls: dict[int | None, StepCalls],
    ) -> None:
        self._cache = cache
        self._operators = operators
        self._slots = slots
        self._calls = calls

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        cache, spec = self._cache, self._cache.spec
        cache.write(layer, self._slots, key, value)
        keys, values = cache.all_blocks(layer)
        queries = cache.queries(query)
        output = torch.zeros_like(query)  # Padding tokens belong to no row and stay zero.
        calls, scale = self._calls[spec.sliding_windows[layer]], spec.scale
        for paged in calls.paged:
            part = queries[paged.tokens][None]  # [1, num_tokens, num_kv_heads, group, head_dim]
            attended = self._operators.attend_paged(part, keys, values, paged.bias, scale)
            heads = cache.heads(attended, paged.num_tokens)
            output.index_copy_(0, paged.tokens[: paged.num_tokens], heads)
        for gathered in calls.gathered:
            part = queries[gathered.tokens][None]
            attended = self._operators.attend_gathered(
                part, *cache.gather(layer, gathered.slots), gathered.bias, scale
            )
            heads = cache.heads(attended, len(gathered.tokens))
            output.index_copy_(0, gathered.tokens, heads)
        return output.flatten(1)
