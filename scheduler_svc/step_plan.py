"""The step that `scheduler` is putting together, before it becomes a `SchedulerOutput`.

It keeps the step's columns and its token budget together, so that a row can be taken out again
when its request has to give way. It decides nothing and knows no queue, block or worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler_svc.output import CachedRequestData, NewRequestData
from scheduler_svc.request import Request


@dataclass(slots=True)
class StepPlan:
    """The step that `schedule` is putting together, in columns by row."""

    token_budget: int
    requests: list[Request] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    new_block_ids: list[Sequence[int]] = field(default_factory=list)
    """By row, of those that the worker knows: they come first."""
    new_reqs: list[NewRequestData] = field(default_factory=list)
    preempted_req_ids: list[str] = field(default_factory=list)
    drafts: dict[str, Sequence[int]] = field(default_factory=dict)
    """By request id: the last tokens of those that are in the row."""
    num_drafts: int = 0
    num_masked_drafts: int = 0
    """Of requests with a grammar: each is one mask more in the step's frame."""

    def add_quiet(self, requests: Sequence[Request]) -> None:
        """Add requests that compute one token each and get no block."""
        num_rows = len(requests)
        self.token_budget -= num_rows
        self.requests += requests
        self.num_scheduled_tokens += [1] * num_rows
        self.new_block_ids += [()] * num_rows

    def add_cached(
        self,
        request: Request,
        num_new: int,
        block_ids: Sequence[int],
        drafts: Sequence[int] = (),
    ) -> None:
        if drafts:
            self.drafts[request.request_id] = drafts
            self._count_drafts(request, len(drafts))
        self.token_budget -= num_new
        self.requests.append(request)
        self.num_scheduled_tokens.append(num_new)
        self.new_block_ids.append(block_ids)

    def remove(self, request: Request) -> bool:
        """Take a request out again, its tokens go back to the budget; False if it is not in.

        Only before new requests are added: rows and cached columns still go together.
        """
        if request not in self.requests:
            return False
        row = self.requests.index(request)
        del self.requests[row], self.new_block_ids[row]
        self._count_drafts(request, -len(self.drafts.pop(request.request_id, ())))
        self.token_budget += self.num_scheduled_tokens.pop(row)
        return True

    def cached_requests(self) -> CachedRequestData:
        """The rows that the worker knows."""
        cached = self.requests[: len(self.new_block_ids)]
        return CachedRequestData([request.request_id for request in cached], self.new_block_ids)

    def _count_drafts(self, request: Request, num_drafts: int) -> None:
        self.num_drafts += num_drafts
        if request.grammar is not None:
            self.num_masked_drafts += num_drafts

    def add_new(self, request: Request, num_new: int, data: NewRequestData) -> None:
        self.token_budget -= num_new
        self.requests.append(request)
        self.num_scheduled_tokens.append(num_new)
        self.new_reqs.append(data)


def new_request_data(request: Request, block_ids: Sequence[int]) -> NewRequestData:
    """Return what a worker needs to know of a request that it does not know."""
    core_request = request.core_request
    params = core_request.sampling_params
    if params.structured_outputs is not None:
        # It comes to the worker as masks.
        params = replace(params, structured_outputs=None)
    return NewRequestData(
        request_id=request.request_id,
        prompt_token_ids=core_request.prompt_token_ids,
        output_token_ids=request.output_token_ids,
        sampling_params=params,
        num_computed_tokens=request.num_computed_tokens,
        block_ids=block_ids,
        lora_digest=core_request.lora_digest,
        traceparent=core_request.traceparent,
    )
