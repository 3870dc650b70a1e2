"""The invariants of the scheduler's lists; checked by tests and debugging, never on a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_svc.request import Request, RequestStatus
from scheduler_svc.request_queue import RequestQueue


def check_requests(
    requests: Mapping[str, Request], running: Sequence[Request], queue: RequestQueue
) -> None:
    """Verify that every live request either waits or runs, and that counts are right.

    Raises:
        RuntimeError: Names the first invariant that does not hold.
    """
    waiting = [*queue, *queue.deferred.values()]
    if len(waiting) != queue.num_waiting:
        raise RuntimeError("the waiting queue's count is wrong")
    if queue.num_tokens != sum(request.num_prompt_tokens for request in waiting):
        raise RuntimeError("the waiting queue's tokens are counted wrong")
    ids = sorted(request.request_id for request in [*waiting, *running])
    if ids != sorted(requests):
        raise RuntimeError("live requests are not those that wait or run")
    if any(request.status is not RequestStatus.RUNNING for request in running):
        raise RuntimeError("a request in the running list is not running")
    if any(request.awaits_grammar for request in running):
        raise RuntimeError("a request runs before its grammar is ready")
    if not all(request.awaits_grammar for request in queue.deferred.values()):
        raise RuntimeError("a request is deferred though nothing holds it up")
