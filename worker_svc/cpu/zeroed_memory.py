"""Zeroed memory for the KV cache, which the kernel gives page by page as it is written to.

A cache is taken for the most that may be there at once; zeros written at the start cost a good part
of its time, for pages that no request may ever need. Knows no caches.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch


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
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
