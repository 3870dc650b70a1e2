"""What changes logits before a token is chosen, row by row, in vLLM V1's order.

allowed_token_ids, bad words, min_tokens, logit_bias, then repetition, frequency and presence
penalties. Rows that ask for nothing cost nothing. Changes the logits in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from worker_svc.sampler.metadata import SamplingRow


def apply_processors(
    logits: torch.Tensor, rows: Sequence[SamplingRow], eos_token_ids: Sequence[int]
) -> None:
    """Applies every processor to logits [num_rows, vocab_size] float32, in place."""
    for index, row in enumerate(rows):
        row_logits = logits[index]
        _allow(row_logits, row)
        _mask_bad_words(row_logits, row)
        _mask_stops(row_logits, row, eos_token_ids)
        for token_id, bias in row.params.logit_bias:
            row_logits[token_id] += bias
        _penalize(row_logits, row)


def _allow(logits: torch.Tensor, row: SamplingRow) -> None:
    if not row.params.allowed_token_ids:
        return
    allowed = torch.tensor(row.params.allowed_token_ids)
    kept = logits[allowed]
    logits.fill_(-torch.inf)
    logits[allowed] = kept


def _mask_bad_words(logits: torch.Tensor, row: SamplingRow) -> None:
    for word in row.params.bad_words_token_ids:
        prefix = word[:-1]
        tail = row.output_token_ids[len(row.output_token_ids) - len(prefix) :]
        # The last token is forbidden only where the output already ends with all before it.
        if len(tail) == len(prefix) and tuple(tail.tolist()) == prefix:
            logits[word[-1]] = -torch.inf


def _mask_stops(logits: torch.Tensor, row: SamplingRow, eos_token_ids: Sequence[int]) -> None:
    if row.output_index >= row.params.min_tokens:
        return
    logits[[*eos_token_ids, *row.params.stop_token_ids]] = -torch.inf


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
