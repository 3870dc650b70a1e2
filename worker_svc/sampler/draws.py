"""Draws of docs/design/draws.md: temperature, truncation, one uniform, one token.

Rows are drawn together, a bounded number at a time. Knows nothing of processors and logprobs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from worker_svc.sampler.metadata import SamplingBatch
from worker_svc.sampler.philox import uniforms
from worker_svc.sampler.scratch import Scratch
from worker_svc.sampler.selection import BlockedRows, Ints
from worker_svc.sampler.truncation import Truncation, lowest_survivors
from worker_svc.sampler.weights import draw_tokens

MAX_VALUES = 1 << 18
"""Logits that are worked on at a time, unless a single row has more: what caches hold."""


def draw(rows: BlockedRows, batch: SamplingBatch, places: Ints, scratch: Scratch) -> Ints:
    """One token for each of some places, [len(places)].

    Args:
        rows: Logits of all places.
        batch: All places.
        places: Those to draw for; each has a finite logit and no NaN.
        scratch: Memory to work in.
    """
    draws = uniforms(batch.seeds[places], batch.output_indices[places].astype(np.uint64))
    token_ids = np.empty(len(places), dtype=np.int64)
    for part in row_chunks(len(places), rows.vocab_size):
        scaled = rows.divided(places[part], batch.temperatures[places[part]])
        thresholds = lowest_survivors(scaled, Truncation.of(batch, places[part]), scratch)
        token_ids[part] = draw_tokens(scaled, thresholds, draws[part], scratch)
    return token_ids


def row_chunks(num_rows: int, vocab_size: int) -> Iterator[slice]:
    """Slices of rows with at most `MAX_VALUES` logits, or one row."""
    size = max(1, MAX_VALUES // vocab_size)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
