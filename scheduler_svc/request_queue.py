"""The waiting requests and the policy that orders them.

A policy answers two questions: who is admitted next, and who is preempted when blocks run out. The
queue does not know blocks, budgets or limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter

from scheduler_svc.request import Request


class RequestQueue(ABC):
    """Waiting requests in a policy's order; every operation but iteration is O(1) or O(log n).

    A request that came to the head and cannot run for a reason of its own (its grammar is not
    ready) is deferred: it holds up nobody, and comes back to the head. Length, iteration and `peek`
    are without the deferred ones.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        """Prompt tokens of all waiting requests together, deferred ones included."""
        self.deferred: dict[str, Request] = {}
        self._num_deferrals = 0

    @property
    def num_waiting(self) -> int:
        """All that wait, deferred ones included."""
        return len(self) + len(self.deferred)

    def defer(self, request: Request) -> None:
        """Pass over a request until `restore`."""
        self.remove(request)
        self.deferred[request.request_id] = request
        self.num_tokens += request.num_prompt_tokens
        self._num_deferrals += 1
        request.deferral = self._num_deferrals

    def restore(self, request: Request) -> None:
        """Let a request be admitted again, if it was deferred."""
        if self.deferred.pop(request.request_id, None) is not None:
            self.num_tokens -= request.num_prompt_tokens
            self.readmit(request)

    def discard(self, request: Request) -> None:
        """Take out a request that waits, deferred or not."""
        if self.deferred.pop(request.request_id, None) is not None:
            self.num_tokens -= request.num_prompt_tokens
        else:
            self.remove(request)

    @abstractmethod
    def add(self, request: Request) -> None:
        """Queue a request that just came in, new or resumed."""

    @abstractmethod
    def prepend(self, request: Request) -> None:
        """Queue a request that was just preempted."""

    @abstractmethod
    def readmit(self, request: Request) -> None:
        """Queue a request that was deferred, in its place among those that were, too."""

    @abstractmethod
    def peek(self) -> Request:
        """The request to admit next.

        Raises:
            IndexError: The queue is empty.
        """

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Take out a request that is in the queue, wherever it is."""

    @abstractmethod
    def pick_victim(self, running: Sequence[Request]) -> Request:
        """The running request to preempt next; `running` is not empty."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...

    @abstractmethod
    def __contains__(self, request: Request) -> bool: ...


class FCFSRequestQueue(RequestQueue):
    """First come, first served; what was admitted before goes before what was not.

    Lanes, each linked and keyed by id so that aborts need no search: preempted and resumed requests
    in the first, new ones in the last. Between them are those that came to the head before and
    were deferred; they go in that order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._admitted_before: OrderedDict[str, Request] = OrderedDict()
        self._deferred_before: dict[str, Request] = {}
        self._order: list[tuple[int, str]] = []
        self._new: OrderedDict[str, Request] = OrderedDict()

    def add(self, request: Request) -> None:
        lane = self._admitted_before if request.core_request.is_resumed else self._new
        lane[request.request_id] = request
        self.num_tokens += request.num_prompt_tokens

    def prepend(self, request: Request) -> None:
        self._admitted_before[request.request_id] = request
        self._admitted_before.move_to_end(request.request_id, last=False)
        self.num_tokens += request.num_prompt_tokens

    def readmit(self, request: Request) -> None:
        self._deferred_before[request.request_id] = request
        heappush(self._order, (request.deferral, request.request_id))
        self.num_tokens += request.num_prompt_tokens

    def peek(self) -> Request:
        if self._admitted_before:
            return next(iter(self._admitted_before.values()))
        while self._order:
            deferral, request_id = self._order[0]
            request = self._deferred_before.get(request_id)
            if request is not None and request.deferral == deferral:
                return request
            heappop(self._order)
        if self._new:
            return next(iter(self._new.values()))
        raise IndexError("no request is waiting")

    def remove(self, request: Request) -> None:
        del self._lane_of(request)[request.request_id]
        self.num_tokens -= request.num_prompt_tokens

    def pick_victim(self, running: Sequence[Request]) -> Request:
        return running[-1]

    def __len__(self) -> int:
        return len(self._admitted_before) + len(self._deferred_before) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        yield from self._admitted_before.values()
        yield from sorted(self._deferred_before.values(), key=attrgetter("deferral"))
        yield from self._new.values()

    def __contains__(self, request: Request) -> bool:
        return self._lane_of(request).get(request.request_id) is request

    def _lane_of(self, request: Request) -> dict[str, Request]:
        for lane in (self._new, self._deferred_before):
            if request.request_id in lane:
                return lane
        return self._admitted_before


_Key = tuple[int, float, str]
_MIN_STALE_KEYS = 64


class PriorityRequestQueue(RequestQueue):
    """Lower `priority` first, then earlier arrival; being preempted or resumed gives no privilege.

    A heap of keys beside the requests by id. A request that leaves from the middle leaves its key
    behind; a key counts only while the request that it names has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests: dict[str, Request] = {}
        self._heap: list[_Key] = []

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request
        heappush(self._heap, _key(request))
        self.num_tokens += request.num_prompt_tokens

    def prepend(self, request: Request) -> None:
        self.add(request)

    def readmit(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        heap = self._heap
        while heap:
            request = self._requests.get(heap[0][2])
            if request is not None and _key(request) == heap[0]:
                return request
            heappop(heap)
        raise IndexError("no request is waiting")

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]
        self.num_tokens -= request.num_prompt_tokens
        if self._heap[0] == _key(request):
            heappop(self._heap)
        elif len(self._heap) > 2 * len(self._requests) + _MIN_STALE_KEYS:
            self._heap = [_key(waiting) for waiting in self._requests.values()]
            heapify(self._heap)

    def pick_victim(self, running: Sequence[Request]) -> Request:
        # Of equals the last: it has the least to lose.
        return max(reversed(running), key=_urgency)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._requests.values(), key=_key))

    def __contains__(self, request: Request) -> bool:
        return self._requests.get(request.request_id) is request


_urgency = attrgetter("core_request.priority", "core_request.arrival_time_s")


def _key(request: Request) -> _Key:
    core_request = request.core_request
    return core_request.priority, core_request.arrival_time_s, core_request.request_id


_POLICIES: dict[str, type[RequestQueue]] = {
    "fcfs": FCFSRequestQueue,
    "priority": PriorityRequestQueue,
}


def create_request_queue(policy: str) -> RequestQueue:
    """Build the queue of a policy.

    Raises:
        ValueError: No such policy.
    """
    if policy not in _POLICIES:
        raise ValueError(f"policy={policy!r}: must be one of {', '.join(sorted(_POLICIES))}")
    return _POLICIES[policy]()
