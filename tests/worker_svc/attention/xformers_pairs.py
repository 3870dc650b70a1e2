"""The xformers backend beside the torch backend, on the same sequences.

The xformers kernels run in Triton's interpreter, in this process: `conftest.py` has set the
environment that they need before triton was imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from tests.worker_svc.attention.paged_cache import CPU, PagedCache, Part
from worker_svc.attention.base import AttentionSpec
from worker_svc.attention.torch_backend import TorchAttentionBackend
from worker_svc.attention.xformers_backend import XformersAttentionBackend, XformersSettings
from worker_svc.attention.xformers_operators import XformersOperators

TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2.5e-2}


class BackendPair:
    """Two caches; what came before a step is put into both without computing it."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        heads: int = 4,
        kv_heads: int = 1,
        head_dim: int = 16,
        block_size: int = 16,
        window: int | None = None,
        dtype: torch.dtype = torch.float32,
        gather_prefill: bool = False,
        pad_calls: bool = False,
        device: torch.device = CPU,
        operators: XformersOperators | None = None,
    ) -> None:
        # A scale of its own, so that one that is made from the padded size is seen.
        spec = AttentionSpec(heads, kv_heads, head_dim, 0.9 * head_dim**-0.5, (window,))
        settings = XformersSettings(device, gather_prefill=gather_prefill, pad_calls=pad_calls)
        self.dtype = dtype
        operators = operators or make_operators()
        self.backend = XformersAttentionBackend(spec, dtype, operators, settings)
        needed = sum(-(-length // block_size) for length in lengths)
        self.xformers, self.torch = (
            PagedCache(
                backend,
                spec,
                lengths,
                block_size=block_size,
                num_blocks=max(64, 1 + needed),
                dtype=dtype,
                device=device,
            )
            for backend in (self.backend, TorchAttentionBackend(spec, dtype, device))
        )

    def check(self, parts: Sequence[Part], num_padding: int = 0) -> list[torch.Tensor]:
        """One step of both, with all earlier tokens in the caches; they agree."""
        for cached, keys, values in (
            (self.xformers, self.backend.cache.keys[0], self.backend.cache.values[0]),
            (self.torch, *self._torch_rows()),
        ):
            for index, start, _ in parts:
                sequence, slots = cached.sequences[index], cached.slots(index, 0, start)
                _put(keys, slots, sequence.key)
                _put(values, slots, sequence.value)
        outputs = self.xformers.step(parts, num_padding)
        tolerance = TOLERANCES[self.dtype]
        for output, expected in zip(outputs, self.torch.step(parts, num_padding), strict=True):
            torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)
        return outputs

    def _torch_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        backend: Any = self.torch.backend
        return backend._keys[0].flatten(0, 1), backend._values[0].flatten(0, 1)


def _put(cache: torch.Tensor, slots: list[int], rows: torch.Tensor) -> None:
    padding = cache.shape[-1] - rows.shape[-1]
    cache[slots] = functional.pad(rows[: len(slots)], (0, padding))


@cache
def make_operators() -> XformersOperators:
    return XformersOperators(interpret=True, gathered_operator=_reference_operator())


def _reference_operator() -> type:
    """Stands for flash and cutlass, which need a GPU: a bias as a tensor, plain attention."""
    XformersOperators(interpret=True)  # imports xformers as the backend does
    from xformers.ops.fmha import attn_bias
    from xformers.ops.fmha.common import AttentionFwOpBase, Inputs

    class Reference(AttentionFwOpBase):
        OPERATOR = True
        NAME = "reference"
        SUPPORTED_DEVICES = frozenset({"cpu"})
        SUPPORTED_DTYPES = frozenset({torch.float32, torch.float16})
        SUPPORTED_MAX_K = 512
        SUPPORTED_ATTN_BIAS_TYPES = (
            attn_bias.BlockDiagonalCausalFromBottomRightMask,
            attn_bias.BlockDiagonalCausalLocalAttentionFromBottomRightMask,
        )
        SUPPORTS_DROPOUT = False
        SUPPORTS_CUSTOM_SCALE = True
        SUPPORTS_BMGHK = True

        @classmethod
        def apply(cls, inp: Inputs, needs_gradient: bool) -> tuple[torch.Tensor, None]:
            query, key, value = (tensor[0].float() for tensor in inp.get_qkv_in_bmghk())
            mask = inp.attn_bias.materialize((query.shape[0], key.shape[0]))
            scores = torch.einsum("qghd,kghd->ghqk", query, key) * inp.scale + mask
            output = torch.einsum("ghqk,kghd->qghd", scores.softmax(-1), value)
            return output[None].to(inp.query.dtype), None

    return Reference
