"""Drives a runner as a scheduler would, with the choices in the test's hands.

All live requests advance in every step; a prompt is cut in chunks; a request can be preempted and
resumed, have drafts proposed for it and its tokens masked. Blocks are handed out from a shuffled
pool, so that neighbours in a sequence are none in memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pagewire.sampling_params import SamplingParams
from worker_svc.grammar_masks import Bitmasks, GrammarMasks
from worker_svc.step import (
    LogprobColumns,
    ModelRunnerOutput,
    NewRequest,
    Runner,
    SchedulerOutput,
)

GREEDY = SamplingParams(temperature=0.0)

Propose = Callable[[Sequence[int]], Sequence[int]]
"""Drafts of what follows an output so far."""
MaskOf = Callable[[Sequence[int]], Bitmasks]
"""The grammar's mask after an output so far."""


@dataclass
class DriverRequest:
    handle: int
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    preempt_after: int | None = None
    """Preempt once, when this many tokens are out."""
    propose: Propose | None = None
    mask_of: MaskOf | None = None
    output_token_ids: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    """For each output token that has some, by token id."""
    prompt_logprobs: list[LogprobColumns] = field(default_factory=list)
    """Each time that some came."""
    num_computed_tokens: int = 0
    known: bool = False
    failure: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def finished(self) -> bool:
        return self.failure is not None or len(self.output_token_ids) >= self.max_tokens


class StepDriver:
    def __init__(
        self, runner: Runner, *, num_blocks: int = 512, block_size: int = 16, chunk: int = 10_000
    ) -> None:
        self.runner = runner
        self.block_size = block_size
        self.chunk = chunk
        runner.allocate_kv_cache(num_blocks, block_size)
        self._free_blocks = list(range(1, num_blocks))
        random.Random(0).shuffle(self._free_blocks)
        self._requests: list[DriverRequest] = []
        self._gone: list[int] = []
        self._preempted: list[int] = []
        self._num_handles = 0
        self._step = 0
        self.num_masks_asked = 0

    @property
    def num_steps(self) -> int:
        return self._step

    @property
    def requests(self) -> Sequence[DriverRequest]:
        return self._requests

    def add(
        self,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams = GREEDY,
        max_tokens: int = 16,
        preempt_after: int | None = None,
        propose: Propose | None = None,
        mask_of: MaskOf | None = None,
    ) -> DriverRequest:
        request = DriverRequest(
            self._next_handle(),
            prompt_token_ids,
            sampling,
            max_tokens,
            preempt_after,
            propose,
            mask_of,
        )
        self._requests.append(request)
        return request

    def run(self) -> None:
        while any(not request.finished for request in self._requests):
            self.step()

    def step(self) -> ModelRunnerOutput:
        self._step += 1
        new, handles, scheduled, counts, blocks = [], [], [], [], []
        live = [request for request in self._requests if not request.finished]
        drafts = [self._drafts(request) for request in live]
        for request, row_drafts in zip(live, drafts, strict=True):
            num_tokens = self._num_known_tokens(request) + len(row_drafts)
            added = self._allocate(request, num_tokens)
            if not request.known:
                new.append(self._new_request(request))
                request.known, added = True, []
            handles.append(request.handle)
            scheduled.append(num_tokens)
            counts.append(len(added))
            blocks.extend(added)
        output = self.runner.execute(
            SchedulerOutput(
                step=self._step,
                new_requests=new,
                handles=handles,
                num_scheduled_tokens=scheduled,
                new_block_counts=counts,
                new_block_ids=blocks,
                finished_handles=self._gone,
                preempted_handles=self._preempted,
                draft_counts=[len(row_drafts) for row_drafts in drafts],
                draft_token_ids=[token_id for row_drafts in drafts for token_id in row_drafts],
                masked_handles=[
                    request.handle
                    for request in live
                    if request.mask_of is not None and self._samples(request)
                ],
            ),
            lambda: self._make_masks(live, drafts),
        )
        self._gone, self._preempted = [], []
        self._update(live, scheduled, output)
        return output

    def _num_known_tokens(self, request: DriverRequest) -> int:
        """Known tokens to compute in this step."""
        return min(self.chunk, request.num_tokens - request.num_computed_tokens)

    def _samples(self, request: DriverRequest) -> bool:
        end = request.num_computed_tokens + self._num_known_tokens(request)
        return end == request.num_tokens

    def _drafts(self, request: DriverRequest) -> Sequence[int]:
        if request.propose is None or not self._samples(request):
            return ()
        room = request.max_tokens - len(request.output_token_ids) - 1
        return request.propose(request.output_token_ids)[:room]

    def _make_masks(
        self, live: Sequence[DriverRequest], drafts: Sequence[Sequence[int]]
    ) -> GrammarMasks:
        self.num_masks_asked += 1
        handles, rows = [], []
        for request, row_drafts in zip(live, drafts, strict=True):
            if request.mask_of is None or not self._samples(request):
                continue
            for place in range(len(row_drafts) + 1):
                handles.append(request.handle)
                rows.append(request.mask_of([*request.output_token_ids, *row_drafts[:place]]))
        return GrammarMasks(self._step, handles, np.stack(rows))

    def _update(
        self, live: Sequence[DriverRequest], scheduled: Sequence[int], output: ModelRunnerOutput
    ) -> None:
        assert list(output.handles) == [request.handle for request in live]
        assert output.step == self._step
        sampled, logprobs = iter(output.sampled_token_ids), _logprobs(output)
        failures = {row.handle: row.failure.reason for row in output.failed}
        for request, num_tokens, num_sampled in zip(
            live, scheduled, output.num_sampled, strict=True
        ):
            end = request.num_computed_tokens + num_tokens
            request.output_token_ids.extend(next(sampled) for _ in range(num_sampled))
            request.logprobs.extend(next(logprobs) for _ in range(num_sampled))
            if request.handle in output.prompt_logprobs:
                request.prompt_logprobs.append(output.prompt_logprobs[request.handle])
            # Of drafts only those that were accepted are computed.
            request.num_computed_tokens = min(end, request.num_tokens - 1) if num_sampled else end
            request.failure = failures.get(request.handle)
            if request.finished:
                self._gone.append(request.handle)
                self._free(request)
            elif len(request.output_token_ids) >= (request.preempt_after or request.max_tokens):
                self._preempt(request)
        assert next(sampled, None) is None

    def _preempt(self, request: DriverRequest) -> None:
        self._preempted.append(request.handle)
        self._free(request)
        request.handle, request.known = self._next_handle(), False
        request.preempt_after, request.num_computed_tokens = None, 0

    def _new_request(self, request: DriverRequest) -> NewRequest:
        return NewRequest(
            handle=request.handle,
            request_id=f"request-{request.handle}",
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=list(request.output_token_ids),
            sampling=request.sampling,
            num_computed_tokens=request.num_computed_tokens,
            block_ids=list(request.block_ids),
        )

    def _allocate(self, request: DriverRequest, num_tokens: int) -> list[int]:
        needed = -(-(request.num_computed_tokens + num_tokens) // self.block_size)
        added = [self._free_blocks.pop() for _ in range(needed - len(request.block_ids))]
        request.block_ids.extend(added)
        return added

    def _free(self, request: DriverRequest) -> None:
        self._free_blocks.extend(request.block_ids)
        request.block_ids = []

    def _next_handle(self) -> int:
        self._num_handles += 1
        return self._num_handles


def _logprobs(output: ModelRunnerOutput) -> Iterator[dict[int, float]]:
    """For each sampled token, its logprobs by token id."""
    columns, start = output.logprobs, 0
    for place in range(len(output.sampled_token_ids)):
        count = columns.counts[place] if columns is not None else 0
        end = start + count
        if columns is None or not count:
            yield {}
        else:
            pairs = zip(columns.token_ids[start:end], columns.logprobs[start:end], strict=True)
            yield dict(pairs)
        start = end
