"""Memory of the KV cache: zero, writable, taken as it is used, given back with its tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from worker_svc.cpu.zeroed_memory import zeros

_NUM_BYTES = 64 * 2**20


def test_it_is_zero_in_the_wanted_shape_and_can_be_written() -> None:
    tensor = zeros((3, 2, 5), torch.float16)
    assert (tuple(tensor.shape), tensor.dtype, int(tensor.count_nonzero())) == (
        (3, 2, 5),
        torch.float16,
        0,
    )
    tensor[2, 1, 4] = 1.0
    assert tensor.flatten().tolist() == [0.0] * 29 + [1.0]


def test_it_takes_memory_as_it_is_written_to_and_gives_it_back_with_the_tensor() -> None:
    before = resident_bytes()
    tensor = zeros((_NUM_BYTES,), torch.uint8)
    assert resident_bytes() - before < _NUM_BYTES // 4
    tensor.fill_(1)
    assert resident_bytes() - before > _NUM_BYTES // 2
    del tensor
    assert resident_bytes() - before < _NUM_BYTES // 4


def test_more_than_there_is_says_so() -> None:
    with pytest.raises(MemoryError, match="cannot be mapped"):
        zeros((2**60,), torch.uint8)


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")
