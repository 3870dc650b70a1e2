"""A model that keeps its KV in pages and reads it back through the block tables.

A position's KV depends on its token and on everything before it, as in a real model, and the next
token is a hash of all that was read. So a wrong block table, a stale or false hit or a block freed
too early changes tokens. It learns of requests only what a step says, like a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from tests.scheduler_svc.factories import VOCAB_SIZE


def kv_of(kv_before: int, token_id: int) -> int:
    """The KV of one position."""
    return hash((kv_before, token_id))


def next_token_id(kvs: Sequence[int | None]) -> int:
    """What the model says after these positions."""
    return hash(tuple(kvs)) % VOCAB_SIZE


def expected_output(
    prompt: Sequence[int], max_tokens: int, eos: frozenset[int] = frozenset()
) -> list[int]:
    """The output of a request that has the engine for itself."""
    kvs: list[int] = []
    for token_id in prompt:
        kvs.append(kv_of(kvs[-1] if kvs else 0, token_id))
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(next_token_id(kvs))
        kvs.append(kv_of(kvs[-1], output[-1]))
        if output[-1] in eos:
            break
    return output


@dataclass
class _Sequence:
    token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int


class SimModel:
    """Pages and the requests that the last steps spoke of."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
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
        for request_id in self._named(output):
            self._requests.pop(request_id, None)

    def knows_rows_of(self, output: SchedulerOutput) -> bool:
        """Whether the step can run, or was planned upon one that failed."""
        return self._requests.keys() >= set(output.scheduled_cached_reqs.request_ids)

    def _named(self, output: SchedulerOutput) -> list[str]:
        rows = [request.request_id for request in output.requests]
        return [*rows, *output.finished_req_ids, *output.preempted_req_ids]

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._apply(output)
        ids = [request.request_id for request in output.requests]
        # As in a real model's layers, all rows write before any row reads.
        for request_id, num_new in zip(ids, output.num_scheduled_tokens, strict=True):
            self._write(self._requests[request_id], num_new, output.drafts.get(request_id, ()))
        return ModelRunnerOutput(
            output.step, [self._sample(self._requests[i], output.drafts.get(i, ())) for i in ids]
        )

    def _apply(self, output: SchedulerOutput) -> None:
        for request_id in output.finished_req_ids:
            self._requests.pop(request_id, None)
        for request_id in output.preempted_req_ids:
            self._requests.pop(request_id, None)
        cached = output.scheduled_cached_reqs
        for request_id, block_ids in zip(cached.request_ids, cached.new_block_ids, strict=True):
            self._requests[request_id].block_ids += block_ids
        for new in output.scheduled_new_reqs:
            if new.request_id in self._requests:
                raise AssertionError(f"{new.request_id} is sent as new twice")
            self._requests[new.request_id] = _Sequence(
                [*new.prompt_token_ids, *new.output_token_ids],
                list(new.block_ids),
                new.num_computed_tokens,
            )

    def _slot(self, sequence: _Sequence, position: int) -> int:
        block_id = sequence.block_ids[position // self._block_size]
        if block_id == 0:
            raise AssertionError("the null block is in a block table")
        return block_id * self._block_size + position % self._block_size

    def _write(self, sequence: _Sequence, num_new: int, drafts: Sequence[int]) -> None:
        if num_new < 1:
            raise AssertionError("a scheduled request has nothing to compute")
        token_ids = [*sequence.token_ids, *drafts]
        if drafts and sequence.num_computed_tokens + num_new != len(token_ids):
            raise AssertionError("drafts are not at the end of what is computed")
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + num_new
        kv = self._pages[self._slot(sequence, start - 1)] if start else 0
        for position in range(start, end):
            # What was never written is wrong from here on, as it would be on a device.
            kv = kv_of(kv or 0, token_ids[position])
            self._pages[self._slot(sequence, position)] = kv
        sequence.num_computed_tokens = end

    def _sample(self, sequence: _Sequence, drafts: Sequence[int]) -> list[int]:
        """The next token, and one more for each draft that was right before it."""
        num_known = len(sequence.token_ids)
        if sequence.num_computed_tokens < num_known:
            return []
        read = [self._pages[self._slot(sequence, i)] for i in range(sequence.num_computed_tokens)]
        sampled: list[int] = []
        for position in range(len(drafts) + 1):
            sampled.append(next_token_id(read[: num_known + position]))
            if position == len(drafts) or sampled[-1] != drafts[position]:
                break
        sequence.token_ids += sampled
        sequence.num_computed_tokens = num_known + len(sampled) - 1
        return sampled
