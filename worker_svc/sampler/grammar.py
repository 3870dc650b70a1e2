"""Grammar masks on logits: what a bit does not allow cannot be drawn.

Applied before all that a request's parameters change. Knows nothing of grammars or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.device import put, put_list
from worker_svc.grammar_masks import Bitmasks


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """The rows of logits that have a mask."""

    places: Sequence[int]
    """Their indices, each once."""
    bitmasks: Bitmasks
    """[len(places), ceil(vocab_size / 8)], least significant bit first."""


def apply_masks(logits: torch.Tensor, masked: MaskedRows) -> None:
    """Set what is not allowed to -inf in logits [num_rows, vocab_size] float32, in place."""
    forbidden = _forbidden(masked, logits.shape[1], logits.device)
    if len(masked.places) == len(logits) and list(masked.places) == list(range(len(logits))):
        logits.masked_fill_(forbidden, -torch.inf)
        return
    places = put_list(list(masked.places), logits.device)
    logits[places] = logits[places].masked_fill_(forbidden, -torch.inf)


def _forbidden(masked: MaskedRows, vocab_size: int, device: torch.device) -> torch.Tensor:
    """[num_masked, vocab_size] bool."""
    if device.type == "cpu":
        bits = np.unpackbits(masked.bitmasks, axis=1, count=vocab_size, bitorder="little")
        return torch.from_numpy(bits) == 0
    # An eighth of the bytes has to go over.
    packed = put(np.ascontiguousarray(masked.bitmasks), device)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return ((packed[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size] == 0
