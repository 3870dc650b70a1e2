"""`sim_model` for a model whose layers are in several KV cache groups, some with a sliding window.

Each group has pages through a block table of its own. A position's KV depends on what it sees in
every group: in a full one on the position before, and so on all of them; in a sliding one on the
`window - 1` positions before. So every token of a step reads its whole window, not only the last.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from scheduler_svc.drafter import DraftSource
from scheduler_svc.kv_cache_groups import KvCacheGroups, KvCacheGroupSpec
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from tests.scheduler_svc.factories import VOCAB_SIZE

FULL = KvCacheGroupSpec(2)


def sliding(window: int) -> KvCacheGroupSpec:
    return KvCacheGroupSpec(2, window)


def seen_by(group: KvCacheGroupSpec, end: int) -> range:
    """Positions whose KV the next position reads: of a full group the last one tells of all."""
    window = group.sliding_window or 2
    return range(max(0, end - window + 1), end)


def context_of(group: KvCacheGroupSpec, end: int) -> range:
    """Positions that the logits after `end` positions come from."""
    return range(max(0, end - group.sliding_window) if group.sliding_window else 0, end)


def continuation(groups: KvCacheGroups, token_ids: Sequence[int]) -> Iterator[int]:
    """What the model says after these tokens, without end."""
    tokens, kvs = list(token_ids), list[int]()
    while True:
        for token_id in tokens[len(kvs) :]:
            seen = [tuple(kvs[i] for i in seen_by(group, len(kvs))) for group in groups]
            kvs.append(hash((*seen, token_id)))
        contexts = [tuple(kvs[i] for i in context_of(group, len(kvs))) for group in groups]
        tokens.append(hash(tuple(contexts)) % VOCAB_SIZE)
        yield tokens[-1]


def expected_output(
    groups: KvCacheGroups, prompt: Sequence[int], max_tokens: int, eos: frozenset[int] = frozenset()
) -> list[int]:
    """The output of a request that has the engine for itself."""
    output: list[int] = []
    for token_id in islice(continuation(groups, prompt), max_tokens):
        output.append(token_id)
        if token_id in eos:
            break
    return output


@dataclass
class _Sequence:
    token_ids: list[int]
    tables: list[list[int]]
    num_computed_tokens: int

    def append_blocks(self, block_ids: Sequence[int]) -> None:
        num_each, rest = divmod(len(block_ids), len(self.tables))
        if rest:
            raise AssertionError("the groups get different numbers of blocks")
        for group_id, table in enumerate(self.tables):
            table += block_ids[group_id * num_each : (group_id + 1) * num_each]


class GroupedModel:
    """Pages, and the requests that the last steps spoke of."""

    def __init__(self, groups: KvCacheGroups, num_blocks: int, block_size: int) -> None:
        self._groups = groups
        self._block_size = block_size
        self._pages: list[int | None] = [None] * (num_blocks * block_size)
        self._requests: dict[str, _Sequence] = {}

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    def lose_everything(self) -> None:
        self._pages = [None] * len(self._pages)
        self._requests.clear()

    def fail(self, output: SchedulerOutput) -> None:
        """A step that fails: every request that it names is forgotten."""
        rows = [request.request_id for request in output.requests]
        for request_id in (*rows, *output.finished_req_ids, *output.preempted_req_ids):
            self._requests.pop(request_id, None)

    def knows_rows_of(self, output: SchedulerOutput) -> bool:
        return self._requests.keys() >= set(output.scheduled_cached_reqs.request_ids)

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._apply(output)
        drafts = [output.drafts.get(request.request_id, ()) for request in output.requests]
        rows = [self._requests[request.request_id] for request in output.requests]
        for row, num_new, row_drafts in zip(rows, output.num_scheduled_tokens, drafts, strict=True):
            self._write(row, num_new, row_drafts)
        sampled = [self._sample(row, d) for row, d in zip(rows, drafts, strict=True)]
        return ModelRunnerOutput(output.step, sampled)

    def _apply(self, output: SchedulerOutput) -> None:
        for request_id in (*output.finished_req_ids, *output.preempted_req_ids):
            self._requests.pop(request_id, None)
        cached = output.scheduled_cached_reqs
        for request_id, block_ids in zip(cached.request_ids, cached.new_block_ids, strict=True):
            self._requests[request_id].append_blocks(block_ids)
        for new in output.scheduled_new_reqs:
            tokens = [*new.prompt_token_ids, *new.output_token_ids]
            sequence = _Sequence(tokens, [[] for _ in self._groups], new.num_computed_tokens)
            sequence.append_blocks(new.block_ids)
            self._requests[new.request_id] = sequence

    def _slot(self, sequence: _Sequence, group_id: int, position: int) -> int:
        block_id = sequence.tables[group_id][position // self._block_size]
        return block_id * self._block_size + position % self._block_size

    def _read(self, row: _Sequence, group_id: int, positions: range) -> tuple[int | None, ...]:
        return tuple(self._pages[self._slot(row, group_id, i)] for i in positions)

    def _write(self, row: _Sequence, num_new: int, drafts: Sequence[int]) -> None:
        token_ids = [*row.token_ids, *drafts]
        start, end = row.num_computed_tokens, row.num_computed_tokens + num_new
        for position in range(start, end):
            seen = [self._read(row, i, seen_by(g, position)) for i, g in enumerate(self._groups)]
            kv = hash((*seen, token_ids[position]))
            for group_id in range(len(self._groups)):
                slot = self._slot(row, group_id, position)
                if slot < self._block_size:
                    raise AssertionError("a token is written into the null block")
                self._pages[slot] = kv
        row.num_computed_tokens = end

    def _sample(self, row: _Sequence, drafts: Sequence[int]) -> list[int]:
        """The next token, and one more for each draft that was right before it."""
        num_known = len(row.token_ids)
        if row.num_computed_tokens < num_known:
            return []
        sampled: list[int] = []
        for index in range(len(drafts) + 1):
            end = num_known + index
            contexts = [self._read(row, i, context_of(g, end)) for i, g in enumerate(self._groups)]
            sampled.append(hash(tuple(contexts)) % VOCAB_SIZE)
            if index == len(drafts) or sampled[-1] != drafts[index]:
                break
        row.token_ids += sampled
        row.num_computed_tokens = num_known + len(sampled) - 1
        return sampled


@dataclass
class GroupedDrafter:
    """Knows what the model will say, and is wrong now and then."""

    groups: KvCacheGroups
    max_drafts: int = 5
    share_right: float = 0.7

    def begin(self) -> DraftSource:
        return _Source(self, random.Random(7))


@dataclass
class _Source:
    drafter: GroupedDrafter
    rng: random.Random

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        right = islice(continuation(self.drafter.groups, token_ids), max_tokens)
        return [
            token_id
            if self.rng.random() < self.drafter.share_right
            else (token_id + 1) % VOCAB_SIZE
            for token_id in right
        ]
