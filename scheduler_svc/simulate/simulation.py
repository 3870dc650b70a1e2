"""The virtual clock: arrivals and ends of steps of all replicas, in order of time.

At equal times a step ends after the arrivals of that time, so that its successor sees them, as the
live engine sees what came while a step ran. It knows no scheduling and no clock of the machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from scheduler_svc.simulate.routing import Router
from scheduler_svc.simulate.trace import TraceRequest
from scheduler_svc.simulate.virtual_engine import VirtualEngine


class Simulation:
    """Runs requests through replicas until everything is finished."""

    def __init__(self, replicas: Sequence[VirtualEngine], router: Router) -> None:
        self.replicas = replicas
        self._router = router
        # A heap of (end of the step, replica); a replica is in it exactly while it is busy.
        self._ends: list[tuple[float, int]] = []

    def run(self, requests: Iterable[TraceRequest]) -> None:
        """Replay requests, which come in order of arrival; each is read when its time has come."""
        idle: set[int] = set()
        last_s = 0.0
        for number, request in enumerate(requests):
            # An idle replica starts once everything of that moment has arrived.
            if request.arrival_time_s > last_s:
                self._start(idle, last_s)
                last_s = request.arrival_time_s
                self._complete_steps_before(last_s)
            chosen = self._router.choose(request, self.replicas)
            replica = self.replicas[chosen]
            replica.submit(number, request, request.arrival_time_s)
            if replica.end_of_step_s is None:
                idle.add(chosen)
        self._start(idle, last_s)
        self._complete_steps_before(float("inf"))
        num_left = sum(replica.num_unfinished for replica in self.replicas)
        if num_left:
            raise RuntimeError(f"{num_left} requests are not finished and nothing runs")

    def _start(self, idle: set[int], now_s: float) -> None:
        for index in sorted(idle):
            self.replicas[index].start(now_s)
            self._push(index)
        idle.clear()

    def _complete_steps_before(self, time_s: float) -> None:
        while self._ends and self._ends[0][0] < time_s:
            _, index = heapq.heappop(self._ends)
            self.replicas[index].complete_step()
            self._push(index)

    def _push(self, index: int) -> None:
        end_s = self.replicas[index].end_of_step_s
        if end_s is not None:
            heapq.heappush(self._ends, (end_s, index))
