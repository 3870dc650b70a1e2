"""A GGUF file as a checkpoint: names and metadata in Hugging Face's terms, tensors dequantized.

Undoes what conversion to GGUF does to tensors: the order of rows of Q and K of the `llama`
architecture, the 1 in norms of Gemma. Names are `gguf_names`', the header reader is
`pagewire.gguf`. Called through `open_weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pagewire.gguf import GgmlType, GgufFile, TensorInfo, read_gguf
from worker_svc.models.gguf_config import ROPE_FACTORS, hf_config_from_gguf
from worker_svc.quantization.forms import GgmlBlocks
from worker_svc.weights.dequantize import dequantize
from worker_svc.weights.gguf_names import hf_name, is_stored_plus_1
from worker_svc.weights.gguf_parts import cut_blocks, dequantize_part
from worker_svc.weights.slots import TensorPart


class GgufSource:
    """The tensors of one GGUF file."""

    def __init__(self, path: Path) -> None:
        self._file: GgufFile = read_gguf(path)
        self._config = hf_config_from_gguf(self._file)
        self._architecture = architecture = str(self._file.metadata["general.architecture"])
        self._tensors: dict[str, TensorInfo] = {
            hf_name(info.name, architecture): info
            for info in self._file.tensors.values()
            if info.name != ROPE_FACTORS  # It is configuration.
        }

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def default_sampling(self) -> Mapping[str, float | int]:
        return {}

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def tensor(self, name: str) -> torch.Tensor:
        info = self._tensors[name]
        weights = dequantize(self._file.tensor_bytes(info), info.ggml_type, self._place(info))
        tensor = torch.from_numpy(np.require(weights, requirements="W")).view(tuple(info.shape))
        if is_stored_plus_1(name, self._architecture):
            return tensor - 1
        heads = self._permuted_heads(name)
        return tensor if heads is None else unpermute_rows(tensor, heads)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def ggml_type(self, name: str) -> GgmlType:
        return self._tensors[name].ggml_type

    def part(self, name: str, part: TensorPart) -> torch.Tensor:
        info, shape = self._tensors[name], self.shape(name)
        data = self._file.tensor_bytes(info)
        weights = dequantize_part(data, shape, info.ggml_type, self._place(info), part)
        tensor = torch.from_numpy(np.require(weights, requirements=["C", "W"]))
        heads = self._permuted_heads(name)
        # A part has whole heads, each of which is permuted for itself.
        return tensor if heads is None else unpermute_rows(tensor, heads * part.size // shape[0])

    def blocks(self, name: str, part: TensorPart | None = None) -> GgmlBlocks | None:
        info, shape = self._tensors[name], self.shape(name)
        blocks = cut_blocks(self._file.tensor_bytes(info), shape, info.ggml_type, part)
        heads = self._permuted_heads(name)
        if blocks is not None and heads is not None:
            # A part has whole heads.
            order = unpermute_rows(torch.arange(len(blocks)), heads * len(blocks) // shape[0])
            blocks = blocks[order.numpy()]
        return None if blocks is None else GgmlBlocks(info.ggml_type, blocks)

    def stored_bytes(self, name: str) -> memoryview:
        return self._file.tensor_bytes(self._tensors[name]).data

    def location(self, name: str | None = None) -> str:
        return self._file.path.name

    def release(self, name: str) -> None:
        self._file.release(self._tensors[name])

    def _place(self, info: TensorInfo) -> str:
        return f"{info.name} (in {self._file.path.name})"

    def _permuted_heads(self, name: str) -> int | None:
        """Number of heads whose rows the conversion interleaved; None: rows are as they were."""
        if self._architecture != "llama":
            return None
        if ".q_proj." in name:
            return int(self._config["num_attention_heads"])
        if ".k_proj." in name:
            return int(self._config["num_key_value_heads"])
        return None


def unpermute_rows(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of Q or K from GGUF's pairwise rotation order to the half-split order.

    Within each head of 2h rows GGUF has 0, h, 1, h + 1, ... of Hugging Face's rows.
    """
    rows = tensor.shape[0]
    pairs = tensor.reshape(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
