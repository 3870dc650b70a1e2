"""Log-probabilities of tokens and their likeliest rivals.

Computed for the rows that ask, together. Of equally likely tokens the lowest id comes first. Knows
nothing of how a token was chosen, and whether the logits are processed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.sampler.metadata import TokenLogprobs
from worker_svc.sampler.selection import BlockedRows, Float32s, Ints


@dataclass(frozen=True, slots=True)
class LogprobTable:
    """Logprobs of rows: a chosen token each, and the likeliest tokens, falling."""

    logprobs: Float32s
    """[num_rows], of the chosen tokens; -inf where a mask forbids one."""
    ranks: Ints
    """[num_rows]; 1 is the likeliest token of the vocabulary."""
    top_token_ids: Ints
    """[num_rows, num_top]"""
    top_logprobs: Float32s
    """[num_rows, num_top]"""

    def entries(self, token_ids: Ints, num_top: Ints) -> list[TokenLogprobs]:
        """One a row: its chosen token, then as many of the likeliest as it asks for."""
        tops, values = self.top_token_ids.tolist(), self.top_logprobs.tolist()
        columns = (
            token_ids.tolist(),
            self.logprobs.tolist(),
            self.ranks.tolist(),
            num_top.tolist(),
        )
        return [
            TokenLogprobs(
                token_ids=[token_id, *top[:num]],
                logprobs=[logprob, *value[:num]],
                sampled_rank=rank,
            )
            for token_id, logprob, rank, num, top, value in zip(*columns, tops, values, strict=True)
        ]


def logprob_table(values: torch.Tensor, token_ids: Ints, num_top: int) -> LogprobTable:
    """Ranks tokens by values.

    Args:
        values: [num_rows, vocab_size] float32 without NaN: log-probabilities, or logits.
        token_ids: [num_rows], the chosen tokens.
        num_top: How many of the likeliest tokens to give beside each.
    """
    chosen = values.gather(1, torch.from_numpy(token_ids)[:, None])
    ranks = (values >= chosen).sum(-1).numpy()
    tops, top_values = _likeliest(BlockedRows.of(values), min(num_top, values.shape[1]))
    return LogprobTable(chosen[:, 0].numpy(), ranks, tops, top_values)


def _likeliest(rows: BlockedRows, num_top: int) -> tuple[Ints, Float32s]:
    num_rows = len(rows)
    if not num_top:
        return np.empty((num_rows, 0), dtype=np.int64), np.empty((num_rows, 0), dtype=np.float32)
    everywhere = np.arange(num_rows)
    lowest = rows.largest(everywhere, num_top)[:, -1:]
    reaching = rows.maxima >= lowest
    # Stable: blocks that reach it first, in rising order; the rest only fills the row up.
    order = np.argsort(~reaching, axis=1, kind="stable")
    token_ids, values = rows.gather_blocks(everywhere, order[:, : reaching.sum(axis=1).max()])
    above = values > lowest
    # Of those that tie with the last one, the lowest ids, as many as there is room for.
    ties = (values == lowest) & (token_ids < rows.vocab_size)
    room = num_top - above.sum(axis=1, keepdims=True)
    kept = above | (ties & (ties.cumsum(axis=1) <= room))
    shape = num_rows, num_top
    kept_ids, kept_values = token_ids[kept].reshape(shape), values[kept].reshape(shape)
    falling = np.argsort(-kept_values, axis=1, kind="stable")
    return (
        np.take_along_axis(kept_ids, falling, axis=1),
        np.take_along_axis(kept_values, falling, axis=1),
    )
