"""Random weights of a model's shape, for `--load-format dummy`.

The same for a tensor name at each load. Matrices are scaled by their inputs, norms are ones and
biases zeros, so that activations stay in the range of a trained model's.
"""

from __future__ import annotations

import zlib

import torch

from worker_svc.device import CPU
from worker_svc.step import ProgressCallback
from worker_svc.weights.slots import Slots, SlotTarget, as_slot


def fill_with_random(slots: Slots, progress: ProgressCallback) -> None:
    """Fill every slot.

    Args:
        slots: By checkpoint tensor name.
        progress: Called with ("load_weights", fraction of tensors).
    """
    progress("load_weights", 0.0)
    for number, (name, slot) in enumerate(slots.items(), start=1):
        _fill(as_slot(slot).target, name)
        progress("load_weights", number / len(slots))


def _fill(target: SlotTarget, name: str) -> None:
    if len(target.shape) < 2:
        target.copy_(torch.full(target.shape, 0.0 if name.endswith("bias") else 1.0))
        return
    device = target.device if isinstance(target, torch.Tensor) else CPU
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
    weights = torch.empty(target.shape, device=device)
    target.copy_(weights.normal_(0.0, target.shape[1] ** -0.5, generator=generator))
