"""The largest values of rows of logits, without sorting the vocabulary.

The vocabulary is cut in blocks whose maxima are taken once, in one fast pass; the k largest values
of a row lie in the k blocks of the largest maxima. Values are exact, and a choice among equal ones
falls on the lowest token id. Knows nothing of parameters but temperatures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.sampler.scratch import Scratch

Float32s = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

BLOCK_SIZE = 64
"""Token ids of a block."""


@dataclass(frozen=True, slots=True)
class BlockedRows:
    """Rows of logits with the maxima of their blocks; divided by a temperature where they are read.

    Division rounds no larger value below a smaller one: maxima stay maxima.
    """

    logits: torch.Tensor
    """[any number, vocab_size] float32, contiguous, as they came."""
    maxima: Float32s
    """[num_rows, ceil(vocab_size / BLOCK_SIZE)], divided; NaN where a block has one."""
    sources: Ints
    """[num_rows], the row of `logits` that each is."""
    temperatures: Float32s | None = None
    """[num_rows]; None: nothing is divided."""

    @classmethod
    def of(cls, logits: torch.Tensor) -> BlockedRows:
        """All rows, as they are."""
        return cls(logits, _block_maxima(logits), np.arange(len(logits)))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    def refresh(self, rows: Ints) -> None:
        """Takes the maxima of these rows again: their logits have changed. Only of all rows."""
        changed = self.logits if len(rows) == len(self) else self.logits[torch.from_numpy(rows)]
        self.maxima[rows] = _block_maxima(changed)

    def divided(self, rows: Ints, temperatures: Float32s) -> BlockedRows:
        """Some rows, divided by their temperatures [len(rows)]. Only of rows that are not."""
        maxima = self.maxima[rows] / temperatures[:, None]
        return BlockedRows(self.logits, maxima, self.sources[rows], temperatures)

    def values(self, rows: Ints, scratch: Scratch) -> torch.Tensor:
        """The logits of some rows, [len(rows), vocab_size]: a copy, in scratch memory."""
        sources, copy = self.sources[rows], scratch.values(len(rows), self.vocab_size)
        if (np.diff(sources) == 1).all():
            chosen = self.logits[int(sources[0]) : int(sources[-1]) + 1]
        else:
            chosen = torch.index_select(self.logits, 0, torch.from_numpy(sources), out=copy)
        if self.temperatures is not None:
            return torch.div(chosen, torch.from_numpy(self.temperatures[rows, None]), out=copy)
        return copy.copy_(chosen)

    def argmax(self) -> Ints:
        """Lowest token id of the largest logit of each row; any id for a row with NaN."""
        blocks = self.maxima.argmax(axis=1)  # numpy takes the first of equal ones
        rows = np.arange(len(self))
        token_ids, values = self.gather_blocks(rows, blocks[:, None])
        best: Ints = token_ids[rows, values.argmax(axis=1)]
        return best

    def gather_blocks(self, rows: Ints, blocks: Ints) -> tuple[Ints, Float32s]:
        """The logits of some blocks of some rows.

        Args:
            rows: [n]
            blocks: [n, m], blocks of each.

        Returns:
            Token ids and logits, [n, m * BLOCK_SIZE]; ids past the vocabulary's end have -inf.
        """
        vocab_size, sources = self.vocab_size, self.sources[rows, None]
        shape = len(rows), blocks.shape[1] * BLOCK_SIZE
        token_ids = (blocks[:, :, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(shape)
        logits = self.logits.numpy()
        values: Float32s
        if vocab_size % BLOCK_SIZE == 0:
            values = logits.reshape(len(logits), -1, BLOCK_SIZE)[sources, blocks].reshape(shape)
        else:
            values = logits[sources, np.minimum(token_ids, vocab_size - 1)]
            values[token_ids >= vocab_size] = -np.inf
        if self.temperatures is not None:
            values /= self.temperatures[rows, None]
        return token_ids, values

    def largest(self, rows: Ints, num_values: int, scratch: Scratch) -> Float32s:
        """The largest logits of some rows, falling: [len(rows), num_values].

        Args:
            rows: Without NaN.
            num_values: At most vocab_size.
            scratch: Where the rows are copied to if they are looked at whole.
        """
        if 2 * num_values * BLOCK_SIZE > self.vocab_size:
            return _largest_values(self.values(rows, scratch).numpy(), num_values)
        blocks = self.maxima[rows].argpartition(-num_values, axis=1)[:, -num_values:]
        return _largest_values(self.gather_blocks(rows, blocks)[1], num_values)


def _block_maxima(logits: torch.Tensor) -> Float32s:
    num_full = logits.shape[1] // BLOCK_SIZE
    end = num_full * BLOCK_SIZE
    maxima = logits[:, :end].view(len(logits), num_full, BLOCK_SIZE).amax(-1)
    if end < logits.shape[1]:
        maxima = torch.cat((maxima, logits[:, end:].amax(-1, keepdim=True)), dim=1)
    found: Float32s = maxima.numpy()
    return found


def _largest_values(values: Float32s, num_values: int) -> Float32s:
    """The largest values of each row, falling; `values` [num_rows, size] are reordered."""
    size = values.shape[1]
    if num_values < size:
        values.partition(size - num_values, axis=1)
    kept = values[:, size - num_values :]
    kept.sort(axis=1)
    return kept[:, ::-1]
