"""A model that keeps token ids in pages and reads them back through the block tables.

The next token is a hash of everything that it read, so a wrong block table, a stale hit or a block
freed too early changes tokens. It learns of requests only what a step says, like a worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from tests.scheduler_svc.factories import VOCAB_SIZE


def next_token_id(token_ids: Sequence[int], vocab_size: int = VOCAB_SIZE) -> int:
    """What the model says after these tokens."""
    digest = hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % vocab_size


def expected_output(
    prompt: Sequence[int], max_tokens: int, eos: frozenset[int] = frozenset()
) -> list[int]:
    """The output of a request that has the engine for itself."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token_id(tokens))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


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

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._apply(output)
        ids = [request.request_id for request in output.requests]
        # As in a real model's layers, all rows write before any row reads.
        for request_id, num_new in zip(ids, output.num_scheduled_tokens, strict=True):
            self._write(self._requests[request_id], num_new)
        return ModelRunnerOutput(output.step, [self._sample(self._requests[i]) for i in ids])

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

    def _write(self, sequence: _Sequence, num_new: int) -> None:
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + num_new
        for position in range(start, end):
            self._pages[self._slot(sequence, position)] = sequence.token_ids[position]
        sequence.num_computed_tokens = end

    def _sample(self, sequence: _Sequence) -> list[int]:
        if sequence.num_computed_tokens < len(sequence.token_ids):
            return []
        read = [self._pages[self._slot(sequence, i)] for i in range(sequence.num_computed_tokens)]
        token_id = next_token_id([-1 if token is None else token for token in read])
        sequence.token_ids.append(token_id)
        return [token_id]
