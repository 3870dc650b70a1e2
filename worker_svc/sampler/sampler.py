"""Chooses one token a place on a CPU: greedy, or the draw of docs/design/draws.md.

Owns the order of operations. A token depends on its own logits, parameters, seed and output index,
never on its place in the batch. A row of NaN, or one where every token is masked, fails alone.
Called by the model runner; knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagewire.engine_config import LogprobsMode
from worker_svc.sampler.draws import draw, row_chunks
from worker_svc.sampler.grammar import MaskedRows, apply_masks
from worker_svc.sampler.logprobs import NamedTokens, logprob_table
from worker_svc.sampler.metadata import (
    Bools,
    Need,
    SamplerOutput,
    SamplingBatch,
    TokenLogprobs,
)
from worker_svc.sampler.processors import apply_processors
from worker_svc.sampler.scratch import Scratch
from worker_svc.sampler.selection import BlockedRows, Ints
from worker_svc.sampler.truncation import Truncation, lowest_survivors
from worker_svc.step import EMPTY_MASK, NAN_LOGITS, RowFailure


class Sampler:
    """Sampler of one model."""

    def __init__(
        self, eos_token_ids: Sequence[int], logprobs_mode: LogprobsMode = "raw_logprobs"
    ) -> None:
        """Make a sampler.

        Args:
            eos_token_ids: What `min_tokens` forbids.
            logprobs_mode: What is given as logprobs: of which logits, and whether normalized.
        """
        self._eos_token_ids = torch.tensor(list(eos_token_ids), dtype=torch.int64)
        self._gives_raw = logprobs_mode.startswith("raw_")
        self._normalizes = logprobs_mode.endswith("_logprobs")
        self._scratch = Scratch()

    def sample(
        self, logits: torch.Tensor, batch: SamplingBatch, masked: MaskedRows | None = None
    ) -> SamplerOutput:
        """One token for each row of logits.

        Args:
            logits: [num_places, vocab_size] float32, contiguous; they are changed.
            batch: The places.
            masked: Grammar masks. They come first: logprobs are those of what a mask leaves.
        """
        rows = BlockedRows.of(logits)
        # NaN or +inf anywhere in a row shows in its maximum.
        is_finite = rows.maxima.max(axis=1) < np.inf
        if masked is not None:
            apply_masks(logits, masked)
            rows.refresh(np.array(masked.places, dtype=np.int64))
        asking = batch.places_with(Need.LOGPROBS)
        raw = self._copy_raw(logits, batch, asking)
        if batch.has_processors:
            apply_processors(logits, batch, self._eos_token_ids)
            rows.refresh(batch.processed_places)
        maxima = rows.maxima.max(axis=1)
        # What a row's own parameters made of it is its own failure, too.
        is_finite &= maxima < np.inf
        is_empty = maxima == -np.inf
        has_token = is_finite & ~is_empty
        token_ids = rows.argmax()
        drawn = batch.places_with(Need.DRAW)
        drawn = drawn[has_token[drawn]]
        if len(drawn):
            token_ids[drawn] = draw(rows, batch, drawn, self._scratch)
        logprobs: list[TokenLogprobs | None] = [None] * len(batch)
        if len(asking):
            given = np.flatnonzero(has_token[asking])
            for part in row_chunks(len(given), rows.vocab_size):
                places = asking[given[part]]
                values = self._values(rows, batch, places) if raw is None else raw[given[part]]
                entries = self._rank(values, batch, places, token_ids)
                for place, entry in zip(places.tolist(), entries, strict=True):
                    logprobs[place] = entry
        return SamplerOutput(token_ids, row_failures(is_finite, is_empty), logprobs)

    def prompt_logprobs(
        self, logits: torch.Tensor, token_ids: Ints, num_top: int
    ) -> list[TokenLogprobs] | None:
        """Logprobs of prompt tokens, or None if the logits have NaN or +inf.

        Args:
            logits: [num_tokens, vocab_size] float32, at the positions before them.
            token_ids: [num_tokens]
            num_top: Of the likeliest tokens beside each.
        """
        if not bool((logits.amax(-1) < torch.inf).all()):
            return None
        values = torch.log_softmax(logits, dim=-1)
        table = logprob_table(values, token_ids, num_top, self._scratch)
        return table.entries(token_ids, np.full(len(token_ids), num_top))

    def _copy_raw(
        self, logits: torch.Tensor, batch: SamplingBatch, asking: Ints
    ) -> torch.Tensor | None:
        """Logits of the asking places before processors; None if they change none."""
        if not (self._gives_raw and batch.has_processors and len(asking)):
            return None
        return logits[torch.from_numpy(asking)]

    def _values(self, rows: BlockedRows, batch: SamplingBatch, places: Ints) -> torch.Tensor:
        """Logits of asking places as the mode wants them; no copy of raw ones was needed."""
        if self._gives_raw:
            is_all = len(places) == len(rows)
            return rows.logits if is_all else rows.values(places, self._scratch)
        # What tokens were chosen from: divided by the temperature, -inf where dropped.
        scaled = rows.divided(places, batch.temperatures[places])
        lowest = lowest_survivors(scaled, Truncation.of(batch, places), self._scratch)
        values = scaled.values(np.arange(len(places)), self._scratch)
        return values.masked_fill_(values < torch.from_numpy(lowest[:, None]), -torch.inf)

    def _rank(
        self, values: torch.Tensor, batch: SamplingBatch, places: Ints, token_ids: Ints
    ) -> list[TokenLogprobs]:
        """Logprobs of places, whose logits [len(places), vocab_size] are given."""
        values = torch.log_softmax(values, dim=-1) if self._normalizes else values.clone()
        chosen, num_top = token_ids[places], batch.num_logprobs[places]
        table = logprob_table(values, chosen, int(num_top.max()), self._scratch)
        entries = table.entries(chosen, num_top)
        named = NamedTokens.of(batch.logprob_token_ids, places)
        if named is not None:
            named.add_to(entries, values.numpy()[named.rows, named.token_ids])
        return entries


def row_failures(is_finite: Bools, is_empty: Bools) -> list[RowFailure | None]:
    """Why places have no token.

    Args:
        is_finite: [num_places], without NaN and +inf.
        is_empty: [num_places], nothing may be drawn.
    """
    if (is_finite & ~is_empty).all():
        return [None] * len(is_finite)
    flags = zip(is_finite, is_empty, strict=True)
    return [NAN_LOGITS if not finite else EMPTY_MASK if empty else None for finite, empty in flags]
