"""Where the tensors of a checkpoint go: whole, or the part that this rank has of them.

Knows no files and no models: a model says where its tensors belong, `load` fills the places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


class SlotTarget(Protocol):
    """What can be filled: a view of a parameter, or weights that are made of what comes."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def copy_(self, tensor: torch.Tensor, /) -> object:
        """Take the values of a tensor of this shape."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """`size` entries of a tensor from `start` on along `dim`: 0 rows, 1 columns."""

    dim: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """A place for a checkpoint tensor, or for a part of it."""

    target: SlotTarget
    """Of the shape of what fills it."""
    part: TensorPart | None = None
    """None: all of it."""
    total: int = 0
    """Size of the whole tensor along the part's `dim`."""

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor in the checkpoint."""
        shape = list(self.target.shape)
        if self.part is not None:
            shape[self.part.dim] = self.total
        return tuple(shape)


Slots = Mapping[str, SlotTarget | WeightSlot]
"""By checkpoint tensor name; a bare target takes all of it."""


def as_slot(slot: SlotTarget | WeightSlot) -> WeightSlot:
    return slot if isinstance(slot, WeightSlot) else WeightSlot(slot)
