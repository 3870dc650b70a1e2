"""Chooses one token a place where the logits are, on a device that nobody should wait for.

The rules are those of `sampler` and docs/design/draws.md. All operations are queued before the
first result is asked for; tokens, flags and logprobs are all that comes back. Rows that fail are
computed like others, and what they gave is dropped on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pagewire.engine_config import LogprobsMode
from worker_svc.device import put
from worker_svc.sampler.device_draws import draw_on_device, lowest_survivors_on_device
from worker_svc.sampler.grammar import MaskedRows, apply_masks
from worker_svc.sampler.logprobs import LogprobTable, NamedTokens
from worker_svc.sampler.metadata import (
    Bools,
    Ints,
    Need,
    SamplerOutput,
    SamplingBatch,
    TokenLogprobs,
)
from worker_svc.sampler.processors import apply_processors
from worker_svc.sampler.sampler import row_failures
from worker_svc.sampler.truncation import Truncation

MAX_VALUES = 1 << 23
"""Logits that are sorted at a time, unless a single row has more: bounds what a step takes."""
_ID_BITS = 32


@dataclass(frozen=True, slots=True)
class _DeviceTable:
    """Logprobs of some rows, still on the device."""

    places: Ints
    logprobs: torch.Tensor
    """[num_rows]"""
    ranks: torch.Tensor
    """[num_rows]"""
    top_token_ids: torch.Tensor
    """[num_rows, num_top]"""
    top_logprobs: torch.Tensor
    named: NamedTokens | None = None
    named_logprobs: torch.Tensor | None = None
    """[num_named]"""

    def entries(self, token_ids: Ints, num_top: Ints) -> list[TokenLogprobs]:
        """Waits for the device."""
        table = LogprobTable(
            self.logprobs.cpu().numpy(),
            self.ranks.cpu().numpy(),
            self.top_token_ids.cpu().numpy(),
            self.top_logprobs.cpu().numpy(),
        )
        entries = table.entries(token_ids, num_top)
        if self.named is not None and self.named_logprobs is not None:
            self.named.add_to(entries, self.named_logprobs.cpu().numpy())
        return entries


class DeviceSampler:
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

    def sample(
        self, logits: torch.Tensor, batch: SamplingBatch, masked: MaskedRows | None = None
    ) -> SamplerOutput:
        """See `StepSampler`."""
        # NaN or +inf anywhere in a row shows in its maximum.
        is_finite = logits.amax(-1) < torch.inf
        if masked is not None:
            apply_masks(logits, masked)
        asking = batch.places_with(Need.LOGPROBS)
        raw = None
        if self._gives_raw and batch.has_processors and len(asking):
            raw = logits[put(asking, logits.device)]
        if batch.has_processors:
            apply_processors(logits, batch, self._eos_token_ids)
        maxima = logits.amax(-1)
        # What a row's own parameters made of it is its own failure, too.
        is_finite &= maxima < torch.inf
        is_empty = maxima == -torch.inf
        token_ids = self._choose(logits, batch)
        # What a failed row drew is no index.
        token_ids = torch.where(is_finite & ~is_empty, token_ids, 0)
        tables = list(self._rank(logits, raw, batch, asking, token_ids))
        columns = torch.stack((token_ids, is_finite, is_empty)).cpu().numpy()
        chosen, finite, empty = columns[0], columns[1] > 0, columns[2] > 0
        logprobs = _logprobs(tables, batch, chosen, finite & ~empty)
        return SamplerOutput(chosen, row_failures(finite, empty), logprobs)

    def prompt_logprobs(
        self, logits: torch.Tensor, token_ids: Ints, num_top: int
    ) -> list[TokenLogprobs] | None:
        """See `StepSampler`."""
        is_finite = (logits.amax(-1) < torch.inf).all()
        values = torch.log_softmax(logits, dim=-1)
        places = np.arange(len(token_ids))
        table = _rank_rows(values, put(token_ids, logits.device), places, num_top)
        if not bool(is_finite):
            return None
        return table.entries(token_ids, np.full(len(token_ids), num_top))

    def _choose(self, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        token_ids = logits.argmax(-1)  # of equal ones the first
        for places in _parts(batch.places_with(Need.DRAW), logits.shape[1]):
            drawn = draw_on_device(self._scaled(logits, batch, places), batch, places)
            token_ids[put(places, logits.device)] = drawn
        return token_ids

    def _scaled(self, logits: torch.Tensor, batch: SamplingBatch, places: Ints) -> torch.Tensor:
        """A copy of the logits of places, divided by their temperatures."""
        temperatures = put(batch.temperatures[places, None], logits.device)
        return logits[put(places, logits.device)].div_(temperatures)

    def _rank(
        self,
        logits: torch.Tensor,
        raw: torch.Tensor | None,
        batch: SamplingBatch,
        asking: Ints,
        token_ids: torch.Tensor,
    ) -> Iterator[_DeviceTable]:
        for part in _parts(np.arange(len(asking)), logits.shape[1]):
            places, device = asking[part], logits.device
            if raw is not None:
                values = raw[put(part, device)]
            elif self._gives_raw:
                values = logits[put(places, device)]
            else:
                values = self._survivors(logits, batch, places)
            if self._normalizes:
                values = torch.log_softmax(values, dim=-1)
            num_top = int(batch.num_logprobs[places].max())
            table = _rank_rows(values, token_ids[put(places, device)], places, num_top)
            named = NamedTokens.of(batch.logprob_token_ids, places)
            if named is not None:
                found = values[put(named.rows, device), put(named.token_ids, device)]
                table = replace(table, named=named, named_logprobs=found)
            yield table

    def _survivors(self, logits: torch.Tensor, batch: SamplingBatch, places: Ints) -> torch.Tensor:
        """What tokens were chosen from: divided by the temperature, -inf where dropped."""
        scaled = self._scaled(logits, batch, places)
        lowest = lowest_survivors_on_device(scaled, Truncation.of(batch, places))
        return scaled if lowest is None else scaled.masked_fill_(scaled < lowest, -torch.inf)


def _parts(places: Ints, vocab_size: int) -> Iterator[Ints]:
    """At most `MAX_VALUES` logits at a time, or one row."""
    size = max(1, MAX_VALUES // vocab_size)
    for start in range(0, len(places), size):
        yield places[start : start + size]


def _rank_rows(
    values: torch.Tensor, token_ids: torch.Tensor, places: Ints, num_top: int
) -> _DeviceTable:
    """Ranks of `token_ids` [num_rows] and the likeliest of `values` [num_rows, vocab_size]."""
    vocab_size = values.shape[1]
    num_top = min(max(1, num_top), vocab_size)
    chosen = values.gather(1, token_ids[:, None])
    # One integer holds value and id, so that of equal values the lowest id is the largest: the bits
    # of a float are in the order of floats, but for negative ones, which fall.
    bits = (values + 0.0).view(torch.int32)
    bits = torch.where(bits < 0, bits ^ 0x7FFF_FFFF, bits).long()
    ids = torch.arange(vocab_size - 1, -1, -1, device=values.device)
    keys = ((bits << _ID_BITS) + ids).topk(num_top, dim=-1).values
    top_ids = vocab_size - 1 - (keys & (2**_ID_BITS - 1))
    return _DeviceTable(
        places=places,
        logprobs=chosen[:, 0],
        ranks=(values >= chosen).sum(-1),
        top_token_ids=top_ids,
        top_logprobs=values.gather(1, top_ids),
    )


def _logprobs(
    tables: Sequence[_DeviceTable], batch: SamplingBatch, token_ids: Ints, has_token: Bools
) -> list[TokenLogprobs | None]:
    logprobs: list[TokenLogprobs | None] = [None] * len(batch)
    for table in tables:
        entries = table.entries(token_ids[table.places], batch.num_logprobs[table.places])
        for place, entry in zip(table.places.tolist(), entries, strict=True):
            logprobs[place] = entry if has_token[place] else None
    return logprobs
