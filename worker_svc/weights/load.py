"""Fills a model's parameters from a checkpoint, one tensor at a time, and takes its digest.

Owns the check that checkpoint and model have the same tensors with the same shapes. Called by the
model runner on the device thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from worker_svc.step import ProgressCallback
from worker_svc.weights.source import WeightsError, WeightSource

DIGEST_SAMPLE_BYTES = 4096
DIGEST_SAMPLES = 16
_NAMES_SHOWN = 5


def load_weights(
    slots: dict[str, torch.Tensor], source: WeightSource, progress: ProgressCallback
) -> None:
    """Copies every tensor of `source` to its slot, with conversion to the slot's type.

    Args:
        slots: Checkpoint tensor name to the part of a parameter that it fills.
        source: The checkpoint.
        progress: Called with ("load_weights", fraction of bytes).

    Raises:
        WeightsError: A tensor is missing, surplus, or of another shape.
    """
    _check_names(slots.keys(), source.names())
    total = sum(slot.nbytes for slot in slots.values())
    loaded = 0
    progress("load_weights", 0.0)
    for name, slot in slots.items():
        tensor = source.tensor(name)
        if tensor.shape != slot.shape:
            raise WeightsError(
                f"tensor {name} has shape {list(tensor.shape)}, the model's config wants "
                f"{list(slot.shape)}"
            )
        slot.copy_(tensor)
        loaded += slot.nbytes
        progress("load_weights", loaded / total)


def weights_digest(source: WeightSource, form: str) -> str:
    """Hex digest of what the weights are: names, sizes and samples of each tensor's bytes.

    Args:
        source: The checkpoint.
        form: What else decides the numbers, such as type and architecture.
    """
    digest = hashlib.sha256(form.encode())
    for name in sorted(source.names()):
        data = source.stored_bytes(name)
        digest.update(f"\0{name}\0{len(data)}\0".encode())
        # Samples, not all bytes: a digest must not cost a second read of a large checkpoint.
        stride = max(DIGEST_SAMPLE_BYTES, len(data) // DIGEST_SAMPLES)
        for start in range(0, len(data), stride):
            digest.update(data[start : start + DIGEST_SAMPLE_BYTES])
    return digest.hexdigest()


def _check_names(wanted: Iterable[str], found: frozenset[str]) -> None:
    missing = sorted(set(wanted) - found)
    surplus = sorted(found - set(wanted))
    if surplus and not missing and surplus == ["lm_head.weight"]:
        # A tied model's checkpoint may hold the shared tensor under both names.
        return
    if missing or surplus:
        problems = [
            f"{kind}: {', '.join(names[:_NAMES_SHOWN])}"
            + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")
            for kind, names in (("missing", missing), ("surplus", surplus))
            if names
        ]
        raise WeightsError(f"checkpoint and model config do not fit; {'; '.join(problems)}")
