"""Fills a model's parameters from a checkpoint, one tensor at a time, and takes its digest.

Owns the check that checkpoint and model have the same tensors with the same shapes. Called by the
model runner on the device thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence

from worker_svc.cpu.packing import PackedMatrix
from worker_svc.quantization.weight import QuantizedTarget
from worker_svc.step import ProgressCallback
from worker_svc.weights.slots import Slots, WeightSlot, as_slot
from worker_svc.weights.source import WeightsError, WeightSource

DIGEST_SAMPLE_BYTES = 4096
DIGEST_SAMPLES = 16
_NAMES_SHOWN = 5


def load_weights(
    slots: Slots,
    source: WeightSource,
    progress: ProgressCallback,
    tensor_names: Collection[str] | None = None,
) -> None:
    """Copies every tensor of `source` to its slot, with conversion to the slot's type.

    Of a tensor that this rank has a part of, only that part is read.

    Args:
        slots: Checkpoint tensor name to the place that it, or a part of it, fills.
        source: The checkpoint.
        progress: Called with ("load_weights", fraction of bytes).
        tensor_names: Of the whole checkpoint; None: those of `slots`.

    Raises:
        WeightsError: A tensor is missing, surplus, no numbers, or of another shape.
    """
    _check_names(slots.keys() if tensor_names is None else tensor_names, source)
    places = {name: as_slot(slot) for name, slot in slots.items()}
    total = sum(place.target.nbytes for place in places.values())
    loaded = 0
    progress("load_weights", 0.0)
    for name, place in places.items():
        shape = source.shape(name)
        if shape != place.tensor_shape:
            raise WeightsError(
                f"{source.location(name)}: tensor {name} has shape {list(shape)}, the model's "
                f"config wants {list(place.tensor_shape)}"
            )
        _fill(place, name, source)
        source.release(name)
        loaded += place.target.nbytes
        progress("load_weights", loaded / total)


def _fill(place: WeightSlot, name: str, source: WeightSource) -> None:
    target, part = place.target, place.part
    if isinstance(target, (QuantizedTarget, PackedMatrix)):
        blocks = source.blocks(name, part)
        if blocks is not None and target.take(blocks):
            return
    tensor = source.tensor(name) if part is None else source.part(name, part)
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise WeightsError(f"{source.location(name)}: tensor {name} has type {kind}, no weights")
    target.copy_(tensor)


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
        source.release(name)
    return digest.hexdigest()


def _check_names(wanted: Iterable[str], source: WeightSource) -> None:
    found = source.names()
    missing = sorted(set(wanted) - found)
    surplus = sorted(found - set(wanted))
    if surplus and not missing and surplus == ["lm_head.weight"]:
        # A tied model's checkpoint may hold the shared tensor under both names.
        return
    problems = []
    if missing:
        problems.append(f"missing: {_listed(missing)}")
    if surplus:
        problems.append(f"surplus: {_listed(surplus)} (in {source.location(surplus[0])})")
    if problems:
        raise WeightsError(
            f"{source.location()}: checkpoint and model config do not fit; {'; '.join(problems)}"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")
