"""Log-probabilities of tokens and their likeliest rivals, or of tokens that are named.

Computed for the rows that ask, together. Of equally likely tokens the lowest id comes first. Knows
nothing of how a token was chosen, and whether the logits are processed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.sampler.metadata import TokenLogprobs
from worker_svc.sampler.scratch import Scratch
from worker_svc.sampler.selection import BlockedRows, Float32s, Ints


@dataclass(frozen=True, slots=True)
class LogprobTable:
    """Logprobs of rows: a chosen token each, and the likeliest tokens, falling."""

    logprobs: Float32s
    """[num_rows], of the chosen tokens; -inf where a mask forbids one."""
    ranks: Ints
    """[num_rows]; 1 is the likeliest token of the vocabulary."""
    top_token_ids: Ints
    """[num_rows, at least as many as asked for]"""
    top_logprobs: Float32s
    """Beside them."""

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


@dataclass(frozen=True, slots=True)
class NamedTokens:
    """The tokens that rows name in place of the likeliest ones, one row's after another's."""

    rows: Ints
    """[num_named]"""
    token_ids: Ints
    """[num_named]"""

    @classmethod
    def of(cls, by_place: Mapping[int, Ints], places: Ints) -> NamedTokens | None:
        """Those of the places, whose rows are in the same order; None: they name none."""
        if not by_place:
            return None
        named = [
            (row, by_place[place]) for row, place in enumerate(places.tolist()) if place in by_place
        ]
        if not named:
            return None
        rows = np.repeat([row for row, _ in named], [len(token_ids) for _, token_ids in named])
        return cls(rows, np.concatenate([token_ids for _, token_ids in named]))

    def add_to(self, entries: list[TokenLogprobs], logprobs: Float32s) -> None:
        """Put them behind the sampled tokens of their rows.

        Args:
            entries: One a row; those of rows that name tokens have the sampled one alone.
            logprobs: [num_named]
        """
        rows, starts = np.unique(self.rows, return_index=True)
        columns = zip(
            rows.tolist(),
            np.split(self.token_ids, starts[1:]),
            np.split(logprobs, starts[1:]),
            strict=True,
        )
        for row, token_ids, values in columns:
            sampled = entries[row]
            entries[row] = TokenLogprobs(
                token_ids=[*sampled.token_ids, *token_ids.tolist()],
                logprobs=[*sampled.logprobs, *values.tolist()],
                sampled_rank=sampled.sampled_rank,
            )


def logprob_table(
    values: torch.Tensor, token_ids: Ints, num_top: int, scratch: Scratch
) -> LogprobTable:
    """Ranks tokens by values.

    Args:
        values: [num_rows, vocab_size] float32 without NaN: log-probabilities, or logits. Not in
            scratch memory.
        token_ids: [num_rows], the chosen tokens.
        num_top: How many of the likeliest tokens to give beside each; one more may be given.
        scratch: Memory to work in.
    """
    rows = BlockedRows.of(values)
    everywhere, num_top = np.arange(len(rows)), min(max(1, num_top), rows.vocab_size)
    chosen = values.numpy()[everywhere, token_ids][:, None]
    lowest = rows.largest(everywhere, num_top, scratch)[:, -1:]
    # Of all tokens only those matter that reach the chosen one or the last of the likeliest.
    reaching = rows.maxima >= np.minimum(lowest, chosen)
    # Stable: blocks that reach it first, in rising order; the rest only fills the row up.
    order = np.argsort(~reaching, axis=1, kind="stable")
    found_ids, found = rows.gather_blocks(everywhere, order[:, : reaching.sum(axis=1).max()])
    exists = found_ids < rows.vocab_size
    above = found > lowest
    # Of those that tie with the last one, the lowest ids, as many as there is room for.
    ties = (found == lowest) & exists
    kept = above | (ties & (ties.cumsum(axis=1) <= num_top - above.sum(axis=1, keepdims=True)))
    shape = len(rows), num_top
    tops, top_values = found_ids[kept].reshape(shape), found[kept].reshape(shape)
    falling = np.argsort(-top_values, axis=1, kind="stable")
    return LogprobTable(
        logprobs=chosen[:, 0],
        ranks=((found >= chosen) & exists).sum(axis=1),
        top_token_ids=np.take_along_axis(tops, falling, axis=1),
        top_logprobs=np.take_along_axis(top_values, falling, axis=1),
    )
