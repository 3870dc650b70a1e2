from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from worker_svc.weights.load import load_weights, weights_digest
from worker_svc.weights.slots import TensorPart
from worker_svc.weights.source import WeightsError


class MemorySource:
    """A checkpoint in memory."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        self.config: Mapping[str, Any] = {}
        self.default_sampling: Mapping[str, float | int] = {}
        self.released: list[str] = []

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def part(self, name: str, part: TensorPart) -> torch.Tensor:
        return self.tensors[name].narrow(part.dim, part.start, part.size)

    def blocks(self, name: str, part: TensorPart | None = None) -> None:
        return None

    def stored_bytes(self, name: str) -> memoryview:
        return memoryview(self.tensors[name].numpy().tobytes())

    def location(self, name: str | None = None) -> str:
        return "memory" if name is None else f"file of {name}"

    def release(self, name: str) -> None:
        self.released.append(name)


def ignore(phase: str, fraction: float) -> None:
    """No interest in progress."""


def test_tensors_fill_their_slots_with_conversion() -> None:
    slots = {"a": torch.empty(2, dtype=torch.bfloat16)}
    load_weights(slots, MemorySource(a=torch.tensor([1.0, 2.5])), ignore)
    assert slots["a"].tolist() == [1.0, 2.5]


def test_progress_rises_to_one() -> None:
    fractions: list[float] = []
    slots = {"a": torch.empty(1), "b": torch.empty(3)}
    source = MemorySource(a=torch.ones(1), b=torch.ones(3))
    load_weights(slots, source, lambda phase, fraction: fractions.append(fraction))
    assert fractions == [0.0, 0.25, 1.0]


def test_a_tensor_is_released_once_it_is_copied() -> None:
    source = MemorySource(a=torch.ones(1), b=torch.ones(1))
    seen: list[list[str]] = []
    slots = {"a": torch.empty(1), "b": torch.empty(1)}
    load_weights(slots, source, lambda phase, fraction: seen.append(list(source.released)))
    assert seen == [[], ["a"], ["a", "b"]]


def test_missing_and_surplus_tensors_are_named() -> None:
    with pytest.raises(WeightsError, match=r"memory: .*missing: a; surplus: c \(in file of c\)"):
        load_weights({"a": torch.empty(1)}, MemorySource(c=torch.ones(1)), ignore)


def test_many_missing_tensors_are_counted() -> None:
    slots = {f"t{index}": torch.empty(1) for index in range(8)}
    with pytest.raises(WeightsError, match=r"missing: t0, t1, t2, t3, t4 and 3 more"):
        load_weights(slots, MemorySource(), ignore)


def test_another_shape_is_named() -> None:
    with pytest.raises(WeightsError, match=r"file of a: tensor a has shape \[2\].* wants \[1\]"):
        load_weights({"a": torch.empty(1)}, MemorySource(a=torch.ones(2)), ignore)


def test_a_tied_model_may_store_its_head_as_well() -> None:
    slots = {"a": torch.empty(1)}
    load_weights(slots, MemorySource(a=torch.ones(1), lm_head__weight=torch.ones(1)), ignore)
    assert slots["a"].item() == 1.0


def test_the_digest_knows_values_names_and_form() -> None:
    base = MemorySource(a=torch.ones(4))
    digests = {
        weights_digest(base, "float32"),
        weights_digest(base, "bfloat16"),
        weights_digest(MemorySource(b=torch.ones(4)), "float32"),
        weights_digest(MemorySource(a=torch.zeros(4)), "float32"),
        weights_digest(MemorySource(a=torch.ones(5)), "float32"),
    }
    assert len(digests) == 5
    assert weights_digest(MemorySource(a=torch.ones(4)), "float32") in digests


def test_a_tensor_that_is_no_numbers_is_refused() -> None:
    mask = torch.ones(2, dtype=torch.bool)
    with pytest.raises(WeightsError, match=r"file of a: tensor a has type bool, no weights"):
        load_weights({"a": torch.empty(2)}, MemorySource(a=mask), ignore)
