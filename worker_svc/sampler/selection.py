"""The largest values of rows of logits, without sorting the vocabulary.

The vocabulary is cut in blocks whose maxima are taken once, in one fast pass; the k largest values
of a row lie in the k blocks of the largest maxima. Values are exact, and a choice among equal ones
falls on the lowest token id. Knows nothing of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Float32s = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

BLOCK_SIZE = 64
"""Token ids of a block."""


@dataclass(frozen=True, slots=True)
class BlockedRows:
    """Rows of logits with the maxima of their blocks."""

    logits: torch.Tensor
    """[num_rows, vocab_size] float32."""
    maxima: torch.Tensor
    """[num_rows, ceil(vocab_size / BLOCK_SIZE)] float32; NaN where a block has one."""

    @classmethod
    def of(cls, logits: torch.Tensor) -> BlockedRows:
        num_full = logits.shape[1] // BLOCK_SIZE
        end = num_full * BLOCK_SIZE
        maxima = logits[:, :end].view(len(logits), num_full, BLOCK_SIZE).amax(-1)
        if end < logits.shape[1]:
            maxima = torch.cat((maxima, logits[:, end:].amax(-1, keepdim=True)), dim=1)
        return cls(logits, maxima)

    def refresh(self, places: Ints) -> None:
        """Takes the maxima of these rows again: their logits have changed."""
        if len(places) == len(self.logits):
            self.maxima.copy_(BlockedRows.of(self.logits).maxima)
            return
        rows = torch.from_numpy(places)
        self.maxima[rows] = BlockedRows.of(self.logits[rows]).maxima

    def select(self, places: Ints) -> BlockedRows:
        """Copies of these rows."""
        rows = torch.from_numpy(places)
        return BlockedRows(self.logits[rows], self.maxima[rows])

    def argmax(self) -> Ints:
        """Lowest token id of the largest logit of each row; any id for a row with NaN."""
        maxima = self.maxima.numpy()
        blocks = maxima.argmax(axis=1)  # numpy takes the first of equal ones
        token_ids, values = self.gather_blocks(np.arange(len(blocks)), blocks[:, None])
        first = values.argmax(axis=1)
        return np.take_along_axis(token_ids, first[:, None], axis=1)[:, 0]

    def gather_blocks(self, places: Ints, blocks: Ints) -> tuple[Ints, Float32s]:
        """The logits of some blocks of some rows.

        Args:
            places: [n], rows.
            blocks: [n, m], blocks of each.

        Returns:
            Token ids and logits, [n, m * BLOCK_SIZE]; ids past the vocabulary's end have -inf.
        """
        vocab_size = self.logits.shape[1]
        token_ids = (blocks[:, :, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(
            len(blocks), -1
        )
        last = vocab_size - 1
        if vocab_size % BLOCK_SIZE == 0:
            return token_ids, self.logits.numpy()[places[:, None], token_ids]
        values = self.logits.numpy()[places[:, None], np.minimum(token_ids, last)]
        values[token_ids > last] = -np.inf
        return token_ids, values

    def largest(self, places: Ints, num_values: int) -> Float32s:
        """The largest logits of some rows, falling: [len(places), num_values].

        Args:
            places: Rows without NaN.
            num_values: At most vocab_size.
        """
        if num_values * BLOCK_SIZE > self.logits.shape[1] // 2:
            return largest_values(self.logits.numpy()[places], num_values)
        maxima = self.maxima[torch.from_numpy(places)]
        blocks = maxima.topk(num_values, sorted=False).indices.numpy()
        return largest_values(self.gather_blocks(places, blocks)[1], num_values)


def largest_values(values: Float32s, num_values: int) -> Float32s:
    """The largest values of each row, falling; `values` [num_rows, size] are reordered."""
    size = values.shape[1]
    if num_values < size:
        values.partition(size - num_values, axis=1)
    kept = values[:, size - num_values :]
    kept.sort(axis=1)
    return kept[:, ::-1]
