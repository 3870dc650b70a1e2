"""The sampling state of all requests on a worker, as columns with a slot for each request.

Filled in when a request comes and kept from step to step: a step only gathers the slots of its
rows. Owns slots, output counts and what processors need to know; it is made anew from prompt and
output ids when a request is resumed. Knows nothing of logits, handles or blocks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pagewire.sampling_params import SamplingParams
from worker_svc.sampler.metadata import Ints, Need, ProcessedRow, SamplingBatch
from worker_svc.sampler.token_counts import CountedTokens, Penalties, TokenCounts
from worker_svc.sampler.token_tables import TokenTables
from worker_svc.thinking_budget import ThinkingState

_INITIAL_SLOTS = 32
_SEED_MASK = 2**64 - 1
_COLUMNS = np.dtype(
    [
        ("needs", np.uint8),
        ("temperature", np.float32),
        ("log_min_p", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("seed", np.uint64),
        ("num_outputs", np.int64),
        ("num_logprobs", np.int64),
    ]
)


class SamplingTable:
    """Sampling state by slot; slots are used again."""

    def __init__(self) -> None:
        self._columns = np.zeros(_INITIAL_SLOTS, dtype=_COLUMNS)
        self._free_slots = list(range(_INITIAL_SLOTS))
        self._processors: dict[int, _Processors] = {}
        self._logprob_token_ids: dict[int, Ints] = {}
        """By slot, of the requests that name any."""
        self._thinking: dict[int, ThinkingState] = {}
        """By slot, of the requests with a budget."""

    def add(
        self,
        params: SamplingParams,
        seed: int,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> int:
        """Takes a request in, new or resumed.

        Args:
            params: Normalized.
            seed: 64 bits, unsigned.
            prompt_token_ids: Its prompt.
            output_token_ids: Its outputs so far, from whose number draws go on.

        Returns:
            Its slot.
        """
        if not self._free_slots:
            size = len(self._columns)
            self._free_slots = list(range(size, 2 * size))
            self._columns = np.concatenate((self._columns, np.zeros(size, dtype=_COLUMNS)))
        slot = self._free_slots.pop()
        processors = _Processors.for_request(params, prompt_token_ids, output_token_ids)
        if processors is not None:
            self._processors[slot] = processors
        named = params.logprob_token_ids
        if named:
            self._logprob_token_ids[slot] = np.array(named, dtype=np.int64)
        if params.thinking_budget is not None:
            self._thinking[slot] = ThinkingState(params.thinking_budget, output_token_ids)
        self._columns[slot] = (
            _needs(params, processors),
            1.0 if params.is_greedy else params.temperature,
            math.log(params.min_p) if params.min_p > 0.0 else -math.inf,
            params.top_k,
            params.top_p,
            seed,
            len(output_token_ids),
            0 if named else params.logprobs or 0,
        )
        return slot

    def remove(self, slot: int) -> None:
        """Forgets a request."""
        self._processors.pop(slot, None)
        self._logprob_token_ids.pop(slot, None)
        self._thinking.pop(slot, None)
        self._free_slots.append(slot)

    def are_plain(self, slots: Sequence[int]) -> bool:
        """Whether the requests in these slots are greedy, and want nothing but tokens."""
        if not self._thinking.keys().isdisjoint(slots):
            return False
        return not self._columns["needs"][slots].any()

    def append(self, slots: Sequence[int], token_ids: Sequence[Sequence[int]]) -> None:
        """Counts new output tokens.

        Args:
            slots: Each once.
            token_ids: For each of `slots`, its new tokens.
        """
        counts = np.array([len(tokens) for tokens in token_ids], dtype=np.int64)
        self._columns["num_outputs"][slots] += counts
        if not self._processors and not self._thinking:
            return
        for slot, tokens in zip(slots, token_ids, strict=True):
            if (processors := self._processors.get(slot)) is not None:
                processors.append(tokens)
            if (thinking := self._thinking.get(slot)) is not None:
                thinking.append(tokens)

    def append_one_each(self, slots: Sequence[int]) -> None:
        """Counts a new output token of each of `slots`, all of them plain: see `are_plain`."""
        self._columns["num_outputs"][slots] += 1

    def gather(
        self, slots: Sequence[int], drafts: Mapping[int, Sequence[int]] | None = None
    ) -> SamplingBatch:
        """The places of a step.

        Args:
            slots: Of its rows, each once.
            drafts: Draft token ids by index into `slots`: such a row has a place more for each.
        """
        rows = np.array(slots, dtype=np.int64)
        num_before = np.zeros(1, dtype=np.int64)
        if drafts:
            num_places = np.ones(len(rows), dtype=np.int64)
            for row, draft_token_ids in drafts.items():
                num_places[row] += len(draft_token_ids)
            rows = np.repeat(rows, num_places)
            first_places = np.cumsum(num_places) - num_places
            num_before = np.arange(len(rows)) - np.repeat(first_places, num_places)
        columns = self._columns[rows]
        return SamplingBatch(
            needs=columns["needs"],
            temperatures=columns["temperature"],
            log_min_p=columns["log_min_p"],
            top_k=columns["top_k"],
            top_p=columns["top_p"],
            seeds=columns["seed"],
            output_indices=columns["num_outputs"] + num_before,
            num_logprobs=columns["num_logprobs"],
            processed=self._processed_rows(slots, drafts or {}) if self._processors else (),
            logprob_token_ids=self._named_by_place(rows) if self._logprob_token_ids else {},
            forced=self._forced_by_place(slots, drafts or {}) if self._thinking else {},
        )

    def _named_by_place(self, slots: Ints) -> dict[int, Ints]:
        named = self._logprob_token_ids
        return {place: named[slot] for place, slot in enumerate(slots.tolist()) if slot in named}

    def _forced_by_place(
        self, slots: Sequence[int], drafts: Mapping[int, Sequence[int]]
    ) -> dict[int, int]:
        forced: dict[int, int] = {}
        place = 0
        for row, slot in enumerate(slots):
            row_drafts = drafts.get(row, ())
            if (thinking := self._thinking.get(slot)) is not None:
                for offset, token_id in enumerate(thinking.forced(row_drafts)):
                    if token_id is not None:
                        forced[place + offset] = token_id
            place += 1 + len(row_drafts)
        return forced

    def _processed_rows(
        self, slots: Sequence[int], drafts: Mapping[int, Sequence[int]]
    ) -> list[ProcessedRow]:
        found: list[ProcessedRow] = []
        place = 0
        for row, slot in enumerate(slots):
            row_drafts = drafts.get(row, ())
            processors = self._processors.get(slot)
            if processors is not None:
                num_outputs = int(self._columns["num_outputs"][slot])
                found += processors.rows(place, num_outputs, row_drafts)
            place += 1 + len(row_drafts)
        return found


@dataclass(slots=True)
class _Processors:
    """What the processors of one request need; only requests that ask for any have it."""

    tables: TokenTables
    min_tokens: int
    counts: TokenCounts | None
    output_tail: list[int]
    max_tail: int
    """How many of the last output tokens bad words look at."""

    @classmethod
    def for_request(
        cls,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> _Processors | None:
        penalties = Penalties(
            params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        )
        has_penalties = penalties != Penalties(1.0, 0.0, 0.0)
        tables = TokenTables.from_params(params)
        if tables.is_empty and not has_penalties:
            return None
        counts = None
        if has_penalties:
            counts = TokenCounts(penalties, prompt_token_ids, output_token_ids)
        words = tables.bad_words
        processors = cls(
            tables,
            params.min_tokens,
            counts,
            output_tail=[],
            max_tail=words.prefix_lengths[-1] if words is not None else 0,
        )
        processors.output_tail = processors._cut(output_token_ids)
        return processors

    def append(self, token_ids: Sequence[int]) -> None:
        if self.counts is not None:
            self.counts.append(token_ids)
        if self.max_tail:
            self.output_tail = self._cut([*self.output_tail, *token_ids])

    def rows(
        self, place: int, num_outputs: int, draft_token_ids: Sequence[int]
    ) -> list[ProcessedRow]:
        """One for the place itself, and one for each draft: it sees the drafts before it."""
        num_places = 1 + len(draft_token_ids)
        counted = self._counted(draft_token_ids)
        return [
            ProcessedRow(
                place=place + offset,
                tables=self.tables,
                is_below_min_tokens=num_outputs + offset < self.min_tokens,
                output_tail=self._cut([*self.output_tail, *draft_token_ids[:offset]]),
                penalized=counted[offset],
            )
            for offset in range(num_places)
        ]

    def _counted(self, draft_token_ids: Sequence[int]) -> Sequence[CountedTokens | None]:
        if self.counts is None:
            return [None] * (1 + len(draft_token_ids))
        if not draft_token_ids:
            return [self.counts.current()]
        return self.counts.after_each(draft_token_ids)

    def _cut(self, output_token_ids: Sequence[int]) -> list[int]:
        return list(output_token_ids[max(0, len(output_token_ids) - self.max_tail) :])


def _needs(params: SamplingParams, processors: _Processors | None) -> int:
    needs = 0
    if processors is not None:
        needs |= Need.PROCESSORS
    if not params.is_greedy:
        needs |= Need.DRAW
    if params.num_logprobs is not None:
        needs |= Need.LOGPROBS
    return needs


def draw_seed(seed: int | None, request_id: str) -> int:
    """A request's seed, 64 bits; without one (the gateway gives every request one) of its id."""
    if seed is not None:
        return seed & _SEED_MASK
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
