"""What changes logits before a token is chosen, row by row, in vLLM V1's order.

allowed_token_ids, bad words, min_tokens, logit_bias, then repetition, frequency and presence
penalties. Rows that ask for nothing cost nothing. Changes the logits in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.sampler.metadata import SamplingRow
from worker_svc.sampler.token_tables import BadWords


def apply_processors(
    logits: torch.Tensor, rows: Sequence[SamplingRow], eos_token_ids: torch.Tensor
) -> None:
    """Applies every processor to logits [num_rows, vocab_size] float32, in place.

    Args:
        logits: [num_rows, vocab_size] float32.
        rows: One for each row of logits.
        eos_token_ids: int64 [num_eos]: what `min_tokens` forbids beside a request's stop ids.
    """
    for index, row in enumerate(rows):
        row_logits, tables = logits[index], row.tables
        if tables.allowed is not None:
            _allow(row_logits, tables.allowed)
        if tables.bad_words is not None:
            _mask_bad_words(row_logits, row.output_token_ids, tables.bad_words)
        if tables.stops is not None and row.output_index < row.params.min_tokens:
            row_logits[eos_token_ids] = -torch.inf
            row_logits[tables.stops] = -torch.inf
        if tables.biased is not None and tables.biases is not None:
            row_logits.index_add_(0, tables.biased, tables.biases)
        _penalize(row_logits, row)


def _allow(logits: torch.Tensor, allowed: torch.Tensor) -> None:
    kept = logits[allowed]
    logits.fill_(-torch.inf)
    logits[allowed] = kept


def _mask_bad_words(
    logits: torch.Tensor, output_token_ids: npt.NDArray[np.int32], words: BadWords
) -> None:
    num_outputs = len(output_token_ids)
    tail = output_token_ids[max(0, num_outputs - words.prefix_lengths[-1]) :].tolist()
    for length in words.prefix_lengths:
        if length > num_outputs:
            return
        # The last token is forbidden only where the output already ends with all before it.
        last_ids = words.by_prefix.get(tuple(tail[len(tail) - length :]))
        if last_ids is not None:
            logits[last_ids] = -torch.inf


def _penalize(logits: torch.Tensor, row: SamplingRow) -> None:
    params = row.params
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.concatenate((row.prompt_token_ids, row.output_token_ids)))
        token_ids = torch.from_numpy(seen.astype(np.int64))
        values = logits[token_ids]
        penalty = params.repetition_penalty
        logits[token_ids] = torch.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty or params.presence_penalty:
        seen, counts = np.unique(row.output_token_ids, return_counts=True)
        token_ids = torch.from_numpy(seen.astype(np.int64))
        times = torch.from_numpy(counts.astype(np.float32))
        logits[token_ids] -= times * params.frequency_penalty + params.presence_penalty
