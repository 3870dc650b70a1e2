"""The requests of one engine, and the moves of one: it comes, runs, gives way, ends.

It keeps what belongs together in step: the queue, the running list, the block tables, the
suspicions, and what the worker has not been told yet. It plans nothing: `scheduler` decides which
moves are made, and may read its lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from pagewire.kit.errors import AlreadyExistsError
from scheduler_svc.admission import check_queue, check_request
from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.grammar import Grammar
from scheduler_svc.integrity import check_requests
from scheduler_svc.kv_cache_manager import KVCacheManager
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.prefix_hit import PrefixHit
from scheduler_svc.request import FINISHED_STATUS, EngineCoreRequest, Request, RequestStatus
from scheduler_svc.request_queue import create_request_queue
from scheduler_svc.stop import Stop
from scheduler_svc.suspicion import Suspects


class LiveRequests:
    """The requests of one engine.

    Invariants between moves: every live request is in `by_id` and in exactly one of `running` and
    `waiting`; exactly the running ones have a block table.
    """

    def __init__(self, limits: SchedulerLimits, kv_cache: KVCacheManager) -> None:
        self.by_id: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting = create_request_queue(limits.policy)
        self.suspects = Suspects()
        self.num_grammars = 0
        """Requests with a compiled grammar."""
        self.num_preemptions = 0
        """Grows forever."""
        self.num_prefilled_tokens = 0
        """Prompt tokens of requests that have got their first token; grows forever."""
        self._limits = limits
        self._kv_cache = kv_cache
        self._finished_req_ids: list[str] = []
        self._preempted_req_ids: list[str] = []
        self._newly_scheduled: list[Request] = []
        self._prefilling: list[Request] = []

    @property
    def has_untold(self) -> bool:
        """Whether requests left the worker that it has not heard of."""
        return bool(self._finished_req_ids or self._preempted_req_ids)

    def add(self, core_request: EngineCoreRequest, now_s: float) -> Request:
        """Check a request and put it in the queue.

        Raises:
            InvalidRequestError: It can never be served here.
            AlreadyExistsError: A live request has its id.
            QueueFullError: Too much is waiting.
        """
        if core_request.request_id in self.by_id:
            raise AlreadyExistsError(
                f"request {core_request.request_id!r} is already live",
                reason="DUPLICATE_REQUEST_ID",
                field="request_id",
            )
        check_request(core_request, self._limits)
        check_queue(core_request, self.waiting, self._limits)
        request = Request(core_request, self._limits, now_s)
        self.by_id[request.request_id] = request
        self.suspects.add(request, core_request.num_suspicions)
        self.waiting.add(request)
        return request

    def set_grammar(self, request: Request, grammar: Grammar) -> None:
        """Let a request run that waited for its grammar."""
        request.awaits_grammar = False
        request.grammar = grammar
        self.num_grammars += 1
        self.waiting.restore(request)

    def start(self, request: Request, hit: PrefixHit, now_s: float) -> None:
        """Move a request, which has its block table now, from the queue to the running list."""
        self.waiting.remove(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = hit.num_tokens
        if request.first_scheduled_time_s is None:
            request.first_scheduled_time_s = now_s
            # A resumed request may hit blocks of its own output; usage counts the prompt alone.
            request.num_cached_tokens = min(hit.num_tokens, request.num_prompt_tokens)
            self._newly_scheduled.append(request)
            if request.num_output_tokens == 0:
                self._prefilling.append(request)

    def preempt(self, request: Request) -> None:
        """Drop the KV of a running request and keep its tokens; it goes before what waits."""
        self._kv_cache.free(request)
        if self.running[-1] is request:
            self.running.pop()
        else:
            self.running.remove(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._preempted_req_ids.append(request.request_id)
        self.waiting.prepend(request)

    def preempt_all(self) -> int:
        """Preempt all that runs, in such an order that what was first will be admitted first.

        Returns:
            How many requests.
        """
        num_preempted = len(self.running)
        while self.running:
            self.preempt(self.running[-1])
        return num_preempted

    def finish(self, request: Request, stop: Stop, message: str) -> FinishedRequest:
        """End a request; its blocks are free at once.

        A running one stays in the list until `drop_finished`, since somebody may walk it.
        """
        if request.status is RequestStatus.RUNNING:
            self._kv_cache.free(request)
            self._finished_req_ids.append(request.request_id)
        else:
            self.waiting.discard(request)
        if request.grammar is not None:
            self.num_grammars -= 1
        request.status = FINISHED_STATUS[stop.reason]
        request.dropped_through_step = inf
        del self.by_id[request.request_id]
        self.suspects.forget(request)
        return FinishedRequest.of(request, stop, message)

    def drop_finished(self) -> None:
        """Take those that ended out of the running list."""
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]

    def take_newly_scheduled(self) -> Iterable[Request]:
        """Those whose first step was planned since the last time, and that have not ended."""
        newly, self._newly_scheduled = self._newly_scheduled, []
        return [request for request in newly if not request.status.is_finished]

    def note_prefilled(self) -> None:
        """Count the prompts of those that have a token by now; a resumed one counted before."""
        if not self._prefilling:
            return
        prefilling = self._prefilling
        self._prefilling = [
            each
            for each in prefilling
            if not each.num_output_tokens and not each.status.is_finished
        ]
        self.num_prefilled_tokens += sum(
            each.num_prompt_tokens for each in prefilling if each.num_output_tokens
        )

    def take_untold(self) -> tuple[list[str], list[str]]:
        """Ids of requests that ended, and that were preempted, since the worker last heard."""
        untold = self._finished_req_ids, self._preempted_req_ids
        self._finished_req_ids, self._preempted_req_ids = [], []
        return untold

    def check_integrity(self) -> None:
        """Verify the invariants; walks everything.

        Raises:
            RuntimeError: Names the first that does not hold.
        """
        check_requests(self.by_id, self.running, self.waiting)
        if self._kv_cache.num_tables != len(self.running):
            raise RuntimeError("block tables are not those of the running requests")
