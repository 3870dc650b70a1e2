"""Memory that the sampler works in, kept from step to step.

Fresh memory of megabytes costs more than the arithmetic done in it: the kernel hands out pages one
by one. One at a time: what a caller writes here is valid until the next call.
"""

from __future__ import annotations

import torch


class Scratch:
    """Two buffers, as large as the largest rows so far. Used from one thread."""

    def __init__(self) -> None:
        self._values = torch.empty(0, dtype=torch.float32)
        self._sums = torch.empty(0, dtype=torch.float64)

    def values(self, num_rows: int, size: int) -> torch.Tensor:
        """[num_rows, size] float32, not initialized."""
        if self._values.numel() < num_rows * size:
            self._values = torch.empty(num_rows * size, dtype=torch.float32)
        return self._values[: num_rows * size].view(num_rows, size)

    def sums(self, num_rows: int, size: int) -> torch.Tensor:
        """[num_rows, size] float64, not initialized."""
        if self._sums.numel() < num_rows * size:
            self._sums = torch.empty(num_rows * size, dtype=torch.float64)
        return self._sums[: num_rows * size].view(num_rows, size)
