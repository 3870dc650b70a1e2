"""What changes logits before a token is chosen, in vLLM V1's order.

allowed_token_ids, bad words, min_tokens, logit_bias, then repetition, frequency and presence
penalties, and last a token that is forced: each one operation on all places that ask for it, and
nothing on any other. Changes the logits in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.device import put, put_list
from worker_svc.sampler.metadata import ProcessedRow, SamplingBatch
from worker_svc.sampler.token_counts import CountedTokens, Penalties
from worker_svc.sampler.token_tables import BadWords


def apply_processors(
    logits: torch.Tensor, batch: SamplingBatch, eos_token_ids: torch.Tensor
) -> None:
    """Applies every processor to logits [num_places, vocab_size] float32, contiguous, in place.

    Args:
        logits: [num_places, vocab_size] float32.
        batch: The places, some of which ask for processors.
        eos_token_ids: int64 [num_eos]: what `min_tokens` forbids beside a request's stop ids.
    """
    rows, forced = batch.processed, _Forced.of(batch.forced, logits)
    _allow(logits, rows)
    _forbid(logits, rows, eos_token_ids)
    _add_biases(logits, rows)
    _penalize(logits, rows)
    if forced is not None:
        forced.apply(logits)


@dataclass(frozen=True, slots=True)
class _Forced:
    """Tokens that come whatever their logits are, but not where a grammar mask forbids them.

    As in vLLM they override all that a request's parameters say; an output that breaks its form
    would be an error instead.
    """

    places: torch.Tensor
    """int64 [num_forced], each once."""
    token_ids: torch.Tensor
    """int64 [num_forced]"""
    is_allowed: torch.Tensor
    """bool [num_forced]"""

    @classmethod
    def of(cls, forced: Mapping[int, int], logits: torch.Tensor) -> _Forced | None:
        """Of logits that have their masks and no more; None: nothing is forced."""
        if not forced:
            return None
        places = put_list(list(forced), logits.device)
        token_ids = put_list(list(forced.values()), logits.device)
        return cls(places, token_ids, logits[places, token_ids] > -torch.inf)

    def apply(self, logits: torch.Tensor) -> None:
        rows = logits[self.places]
        alone = torch.full_like(rows, -torch.inf).scatter_(1, self.token_ids[:, None], 0.0)
        logits[self.places] = torch.where(self.is_allowed[:, None], alone, rows)


def _allow(logits: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
    allowed = [(row.place, row.tables.allowed) for row in rows if row.tables.allowed is not None]
    if not allowed:
        return
    flat, indices = logits.view(-1), _flat_indices(logits, allowed)
    kept = flat[indices]
    logits[[place for place, _ in allowed]] = -torch.inf
    flat[indices] = kept


def _forbid(
    logits: torch.Tensor, rows: Sequence[ProcessedRow], eos_token_ids: torch.Tensor
) -> None:
    """Bad words and `min_tokens`; the order of the two plays no part."""
    forbidden: list[tuple[int, torch.Tensor]] = []
    for row in rows:
        words, stops = row.tables.bad_words, row.tables.stops
        if words is not None:
            forbidden += ((row.place, ids) for ids in _last_ids(words, row.output_tail))
        if stops is not None and row.is_below_min_tokens:
            forbidden += ((row.place, eos_token_ids), (row.place, stops))
    if forbidden:
        logits.view(-1)[_flat_indices(logits, forbidden)] = -torch.inf


def _last_ids(words: BadWords, output_tail: Sequence[int]) -> Iterator[torch.Tensor]:
    """Last tokens of the words whose other tokens the output ends with."""
    num_outputs = len(output_tail)
    for length in words.prefix_lengths:
        if length > num_outputs:
            return
        last_ids = words.by_prefix.get(tuple(output_tail[num_outputs - length :]))
        if last_ids is not None:
            yield last_ids


def _add_biases(logits: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
    biased = [(row.place, row.tables.biased) for row in rows if row.tables.biased is not None]
    if biased:
        biases = [row.tables.biases for row in rows if row.tables.biases is not None]
        # A sum in the order of the request, where it names an id twice: index_put_ promises none.
        added = torch.cat(biases).to(logits.device)
        logits.view(-1).index_add_(0, _flat_indices(logits, biased), added)


def _penalize(logits: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
    penalized = [(row.place, row.penalized) for row in rows if row.penalized is not None]
    if not penalized:
        return
    counted = [tokens for _, tokens in penalized]
    sizes = [len(tokens.token_ids) for tokens in counted]
    starts = np.array([place * logits.shape[1] for place, _ in penalized])
    token_ids = np.concatenate([tokens.token_ids for tokens in counted])
    device = logits.device
    indices = put(token_ids + np.repeat(starts, sizes), device)
    times = put(np.concatenate([tokens.counts for tokens in counted]), device)
    repetition, frequency, presence = (put(column, device) for column in _columns(counted, sizes))
    flat = logits.view(-1)
    values = flat[indices]
    values = torch.where(values > 0, values / repetition, values * repetition)
    flat[indices] = values - (times * frequency + presence * (times > 0))


def _columns(
    counted: Sequence[CountedTokens], sizes: Sequence[int]
) -> list[npt.NDArray[np.float32]]:
    """Repetition, frequency and presence penalty for each counted token."""
    penalties: list[Penalties] = [tokens.penalties for tokens in counted]
    columns: tuple[list[float], ...] = (
        [one.repetition for one in penalties],
        [one.frequency for one in penalties],
        [one.presence for one in penalties],
    )
    return [np.repeat(np.array(column, dtype=np.float32), sizes) for column in columns]


def _flat_indices(
    logits: torch.Tensor, ids_of_places: Sequence[tuple[int, torch.Tensor]]
) -> torch.Tensor:
    """Where token ids of places lie in the flat logits, int64."""
    sizes = [len(token_ids) for _, token_ids in ids_of_places]
    starts: npt.NDArray[np.int64] = np.array(
        [place * logits.shape[1] for place, _ in ids_of_places], dtype=np.int64
    )
    shifts = torch.from_numpy(np.repeat(starts, sizes))
    indices = torch.cat([token_ids for _, token_ids in ids_of_places]) + shifts
    return indices.to(logits.device)
