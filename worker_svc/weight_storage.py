"""Where a model's weights are while it sleeps: in host memory, and back on the device.

Moves the data of parameters and buffers from under them, so that whoever holds one, and those that
are tied, hold it still. Knows no levels and no leases. Called by the model runner.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def move_to_host(model: nn.Module) -> None:
    """To host memory, pinned where a CUDA device will read it back."""
    for tensor in _tensors(model):
        pins = tensor.device.type == "cuda"
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pins)
        tensor.data = host.copy_(tensor.data)


def move_to_device(model: nn.Module, device: torch.device) -> None:
    """From host memory, which is given back."""
    for tensor in _tensors(model):
        tensor.data = tensor.data.to(device, non_blocking=True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        release_pinned_memory()


def release_pinned_memory() -> None:
    """Give back what no tensor holds: torch keeps pinned memory for later use, as much as it was.

    torch has no public way; where it has none at all, the memory stays for the next sleep.
    """
    release = getattr(torch._C, "_host_emptyCache", None)
    if release is not None:
        release()


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Each once, however many modules have it."""
    yield from model.parameters()
    yield from model.buffers()
