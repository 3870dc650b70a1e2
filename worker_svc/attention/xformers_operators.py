"""The way to xformers: its operators, its biases, and the one call of them.

The only module that imports xformers, and with it triton; it does so when `XformersOperators` is
made. Owns how the split-K operator is set up for a block size, and what differs between CUDA and
Triton's interpreter on a CPU. Knows nothing of steps and caches.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

SPLIT_TOKENS = 512
"""Keys of one split. Fixed, so that a query's keys are added up in one order whatever the batch."""
_LARGEST_TILE = 64
_INTERPRETER_ROWS = 64
"""Queries of one program in the interpreter, where programs run one after another."""


class XformersOperators:
    """Attention calls on queries [1, num_tokens, num_kv_heads, group_size, head_dim].

    Keys and values are [1, num_keys, num_kv_heads, group_size, head_dim] with stride 0 over the
    group; for paged biases `num_keys` is num_blocks * block_size.
    """

    def __init__(self, *, interpret: bool, gathered_operator: type | None = None) -> None:
        """Imports xformers.

        Args:
            interpret: On a CPU; needs TRITON_INTERPRET=1 in the environment.
            gathered_operator: For `attend_gathered`; None: xformers' own choice for the device.

        Raises:
            ValueError: xformers cannot be imported.
        """
        self._interpret = interpret
        self._fmha = _import_fmha(interpret)
        self._gathered_operator = gathered_operator
        self._split_k: dict[int, Any] = {}

    def paged_bias(
        self, query_len: int, kv_lens: Sequence[int], tables: torch.Tensor, block_size: int
    ) -> Any:
        """Causal; `query_len` queries a row, which are the last of its `kv_lens` positions.

        Args:
            query_len: 1 to 16.
            kv_lens: For each row of `tables`; 0 for a padding row, whose output is undefined.
            tables: [num_rows, width] int32.
            block_size: Tokens in a block.
        """
        mask = self._fmha.attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
        queries = [query_len] * len(kv_lens)
        return mask.from_seqlens(queries, kv_lens, tables, block_size, device=tables.device)

    def paged_window_bias(
        self, starts: Sequence[int], kv_lens: Sequence[int], tables: torch.Tensor, block_size: int
    ) -> Any:
        """One query a row, which sees positions [start, kv_len) of its blocks."""
        biases = self._fmha.attn_bias
        # Rows lie side by side in a space that the mask only imagines, so far apart.
        spacing = tables.shape[1] * block_size
        begins = [row * spacing + start for row, start in enumerate(starts)]
        flat = biases.BlockDiagonalGappyKeysMask.from_seqlens(
            [1] * len(starts),
            [*begins, len(starts) * spacing],
            [kv_len - start for start, kv_len in zip(starts, kv_lens, strict=True)],
            device=tables.device,
        )
        return flat.make_paged(tables, block_size, spacing, biases.PagedBlockDiagonalGappyKeysMask)

    def gathered_bias(
        self,
        query_lens: Sequence[int],
        kv_lens: Sequence[int],
        window: int | None,
        device: torch.device,
    ) -> Any:
        """Causal, for keys that lie row after row; a row's queries are its last positions."""
        mask = self._fmha.attn_bias.BlockDiagonalCausalFromBottomRightMask
        bias = mask.from_seqlens(query_lens, kv_lens, device=device)
        return bias if window is None else bias.make_local_attention_from_bottomright(window)

    def attend_paged(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: Any,
        scale: float,
    ) -> torch.Tensor:
        """Through the block tables of a paged bias, by the split-K operator."""
        operator = self._split_k_operator(bias.page_size)
        num_splits = num_key_splits(bias.block_tables.shape[1], bias.page_size)
        return self._attend(query, key, value, bias, scale, operator.get_operator(num_splits))

    def attend_gathered(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: Any,
        scale: float,
    ) -> torch.Tensor:
        """Over keys that a gathered bias divides in rows."""
        return self._attend(query, key, value, bias, scale, self._gathered_operator)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: Any,
        scale: float,
        operator: Any,
    ) -> torch.Tensor:
        # The interpreter computes in numpy, which warns of the infinities that masking makes.
        quiet = np.errstate(all="ignore") if self._interpret else contextlib.nullcontext()
        with quiet:
            output: torch.Tensor = self._fmha.memory_efficient_attention_forward(
                query, key, value, attn_bias=bias, scale=scale, op=operator
            )
        return output

    def _split_k_operator(self, block_size: int) -> Any:
        """The operator whose tiles of keys divide a block."""
        if block_size not in self._split_k:
            base = self._fmha.triton_splitk.FwOp
            fields: dict[str, Any] = {"BLOCK_N": min(block_size, _LARGEST_TILE)}
            if self._interpret:
                fields["SUPPORTED_DEVICES"] = {"cuda", "cpu"}
                fields["SUPPORTED_DTYPES"] = {torch.float16, torch.float32}
                fields["BLOCK_M"] = _INTERPRETER_ROWS
                fields["get_extra_args"] = classmethod(_interpreter_arguments)
            self._split_k[block_size] = type("PagedSplitK", (base,), fields)
        return self._split_k[block_size]


def num_key_splits(table_width: int, block_size: int) -> int:
    """Splits of the keys for block tables of that width; 1 for one that is no full split."""
    return max(1, table_width * block_size // SPLIT_TOKENS)


def _interpreter_arguments(operator: Any, /, **_: Any) -> dict[str, int]:
    """The kernel's tile sizes; xformers would ask a GPU for its version."""
    return {
        "BLOCK_M": operator.BLOCK_M,
        "BLOCK_N": operator.BLOCK_N,
        "num_warps": operator.NUM_WARPS,
        "num_stages": operator.NUM_STAGES,
    }


def _import_fmha(interpret: bool) -> Any:
    if interpret:
        # Without a GPU xformers asks this variable whether it may import triton.
        os.environ["XFORMERS_ENABLE_TRITON"] = "1"
    # It warns that its compiled extension does not fit this torch; nothing here uses that.
    logging.getLogger("xformers").setLevel(logging.ERROR)
    try:
        from xformers.ops import fmha
        from xformers.ops.fmha import common
    except ImportError as error:
        raise ValueError(
            "attention_backend xformers cannot be imported: install pagewire[worker-gpu], or use "
            "--attention-backend torch"
        ) from error
    # Without that extension it refuses every operator on CUDA. The ones that are used here are
    # Triton's and PyTorch's own: they need none of it.
    common._built_with_cuda = True
    return fmha
