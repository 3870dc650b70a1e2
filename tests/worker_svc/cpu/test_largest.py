"""The largest of many values and its lowest place, however the values are cut."""

from __future__ import annotations

import numpy as np
import pytest

from worker_svc.cpu.kernels import Kernels
from worker_svc.cpu.variant_check import largest_of

SIZES = [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 100, 257]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_any_place_is_found(kernels: Kernels, size: int, pieces: int) -> None:
    values = -np.arange(size, dtype=np.float32) / 8 - 1
    for place in range(size):
        raised = values.copy()
        raised[place] = 2.5
        assert largest_of(kernels, raised, min(pieces, size)) == (2.5, place)


@pytest.mark.parametrize("size", SIZES)
def test_of_equal_values_the_first_counts(kernels: Kernels, size: int) -> None:
    random = np.random.default_rng(size)
    for pieces in (1, 3):
        values = random.integers(-2, 3, size).astype(np.float32)
        expected = float(values.max()), int(values.argmax())
        assert largest_of(kernels, values, min(pieces, size)) == expected
    zeros = np.array([-0.0, 0.0] * size, np.float32)
    assert largest_of(kernels, zeros, 1) == (0.0, 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pieces", [1, 4])
def test_a_nan_anywhere_is_told(kernels: Kernels, size: int, pieces: int) -> None:
    for place in range(size):
        values = np.linspace(-3, 3, size, dtype=np.float32)
        values[place] = np.nan
        assert np.isnan(largest_of(kernels, values, min(pieces, size))[0])


@pytest.mark.parametrize("size", [1, 17, 64])
def test_infinities_are_values_like_others(kernels: Kernels, size: int) -> None:
    values = np.full(size, -np.inf, np.float32)
    assert largest_of(kernels, values, 1) == (-np.inf, 0)
    values[-1] = np.inf
    assert largest_of(kernels, values, 1) == (np.inf, size - 1)
