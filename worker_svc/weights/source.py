"""What a checkpoint is to the loader: tensors by Hugging Face name, whatever the file format.

Also opens the right kind for a resolved model. Knows nothing of models beyond their config fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from pagewire.gguf import GgmlType
from pagewire.model_source import ModelFormat, ModelSource
from worker_svc.quantization.forms import GgmlBlocks
from worker_svc.weights.slots import TensorPart


class WeightsError(ValueError):
    """A checkpoint does not fit its model, or is damaged; names the tensor and the file."""


class WeightSource(Protocol):
    """An opened checkpoint. Tensors are read when asked for, one at a time."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Fields of a Hugging Face config.json."""

    @property
    def default_sampling(self) -> Mapping[str, float | int]:
        """Sampling defaults of the publisher, by SamplingParams field name."""

    def names(self) -> frozenset[str]:
        """Names of all tensors that carry weights, in Hugging Face's naming."""

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, in the file's own floating type, or float32 where it is quantized."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, which is not read for it."""

    def part(self, name: str, part: TensorPart) -> torch.Tensor:
        """A part of a tensor, as `tensor` gives it; no more of the file is read than it needs."""

    def ggml_type(self, name: str) -> GgmlType | None:
        """The type of a tensor's blocks, single numbers among them; None where it has none."""

    def blocks(self, name: str, part: TensorPart | None = None) -> GgmlBlocks | None:
        """A tensor, or a part of it, in the blocks of its file; None where it has none of its own.

        Rows are in the order that `tensor` gives them in.
        """

    def stored_bytes(self, name: str) -> memoryview:
        """The tensor's bytes as they lie in the file, memory-mapped; for the digest."""

    def location(self, name: str | None = None) -> str:
        """Name of the file that a tensor is in, or of the checkpoint; for messages."""

    def release(self, name: str) -> None:
        """The tensor has been copied: its pages of the file need not stay in this process."""


def open_weights(source: ModelSource) -> WeightSource:
    """Opens a resolved model: one GGUF file, or a Hugging Face directory.

    Raises:
        ValueError: The files are damaged, or of a kind that is not implemented.
    """
    if source.format is ModelFormat.GGUF:
        from worker_svc.weights.gguf_source import GgufSource

        return GgufSource(source.path)
    from worker_svc.weights.safetensors_source import SafetensorsSource

    return SafetensorsSource(source.path)
