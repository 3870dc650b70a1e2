"""What a piece of work holds at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worker_svc.peak_memory import peak_bytes

SIZE = 4 * 1000 * 1000
SLACK = 50_000
WEIGHTS = torch.randn(1000, 1000)


def two_at_once() -> torch.Tensor:
    first = torch.ones(1000, 1000)
    second = first @ WEIGHTS
    del first
    return second * 2


def test_what_is_given_back_is_taken_off() -> None:
    assert 2 * SIZE <= peak_bytes(two_at_once) < 2 * SIZE + SLACK


def test_arrays_count_as_well() -> None:
    assert SIZE <= peak_bytes(lambda: np.ones(SIZE // 8)) < SIZE + SLACK


def test_what_was_there_before_and_views_of_it_count_nothing() -> None:
    assert peak_bytes(lambda: WEIGHTS.t()[:, :5]) < SLACK


def test_an_error_ends_the_measurement() -> None:
    def fail() -> None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        peak_bytes(fail)
    assert peak_bytes(lambda: torch.ones(1000, 1000)) < SIZE + SLACK
