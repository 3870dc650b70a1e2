"""Zeroed memory for the KV cache, taken from the kernel at once and in large pages where it can.

PyTorch's own zeros are written once by the kernel and once more by the library, a small page at a
time: of 1 GiB that is a good part of what a start takes. Knows no caches.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch

# Linux 5.14; Python has no name for it yet.
_MADV_POPULATE_WRITE = 23
# The call holds the interpreter, so it is made for a part at a time.
_PART_BYTES = 32 * 2**20


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros on the CPU, whose memory is given back with it.

    Raises:
        MemoryError: The kernel has not so much.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes cannot be mapped") from error
    # What a kernel does not know it refuses; pages then come when they are first written to.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    with contextlib.suppress(OSError):
        for start in range(0, num_bytes, _PART_BYTES):
            part = min(_PART_BYTES, num_bytes - start)
            memory.madvise(_MADV_POPULATE_WRITE, start, part)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
