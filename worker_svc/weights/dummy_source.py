"""What stands for a checkpoint with `--load-format dummy`: its config, and no tensors.

The loader then fills a model with random weights of the right shapes (`weights.dummy`). Only the
config of the model is read, so its weights need not be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pagewire.model_source import ModelSource
from worker_svc.models.config_fields import read_config_fields
from worker_svc.weights.slots import TensorPart
from worker_svc.weights.source import WeightsError


@dataclass(frozen=True, slots=True)
class DummySource:
    """A `WeightSource` without tensors."""

    name: str
    config: Mapping[str, Any]
    default_sampling: Mapping[str, float | int]

    @classmethod
    def of(cls, model: ModelSource) -> DummySource:
        """The config of a resolved model.

        Raises:
            ValueError: It is damaged.
        """
        return cls(model.path.name, read_config_fields(model), {})

    def names(self) -> frozenset[str]:
        return frozenset()

    def tensor(self, name: str) -> torch.Tensor:
        raise self._no_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        raise self._no_tensor(name)

    def part(self, name: str, part: TensorPart) -> torch.Tensor:
        raise self._no_tensor(name)

    def ggml_type(self, name: str) -> None:
        raise self._no_tensor(name)

    def blocks(self, name: str, part: TensorPart | None = None) -> None:
        raise self._no_tensor(name)

    def stored_bytes(self, name: str) -> memoryview:
        raise self._no_tensor(name)

    def location(self, name: str | None = None) -> str:
        return self.name

    def release(self, name: str) -> None:
        """There is nothing to give back."""

    def _no_tensor(self, name: str) -> WeightsError:
        return WeightsError(f"{self.name}: tensor {name} is not read with load_format dummy")
