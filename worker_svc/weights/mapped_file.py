"""A checkpoint's file, mapped, whose pages can be given back one range at a time.

Knows no format. Pages that were read count as the process's own until they are released, though
the kernel can take them back: without that a load would look, and be charged, twice as large.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class MappedFile:
    """One file; the map lives as long as anybody holds a view of `data`."""

    path: Path
    data: npt.NDArray[np.uint8]
    """The whole file. Copy-on-write, since torch warns of arrays that are read-only; nobody
    writes."""
    _map: mmap.mmap

    @classmethod
    def open(cls, path: Path) -> MappedFile:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return cls(path, np.frombuffer(mapped, dtype=np.uint8), mapped)

    def release(self, start: int, n_bytes: int) -> None:
        """Give the pages of a range back; reading it again reads the file again."""
        first = start - start % mmap.PAGESIZE
        if n_bytes:
            self._map.madvise(mmap.MADV_DONTNEED, first, start + n_bytes - first)
