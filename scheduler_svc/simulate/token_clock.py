"""When tokens come, and how long each was waited for, without looking at every row of a step.

A request that draws once in its stay in the running list draws in every later step of it: running
requests come first, in order, and what is before one in the list never needs more tokens than in
the step before. So only those that have not drawn since their admission, and those that were
preempted, are looked at one by one; all the others of a step share one gap. Called by
`virtual_engine` when a step is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_svc.output import SchedulerOutput
from scheduler_svc.simulate.measures import Samples


class TokenClock:
    """Tokens of one replica.

    Invariant: a live request that was admitted and is not in `_apart` drew a token in the last
    complete step.
    """

    def __init__(self, ttft_s: Samples, itl_s: Samples) -> None:
        self._ttft_s = ttft_s
        self._itl_s = itl_s
        self._apart: dict[str, float | None] = {}
        """When they last drew a token; None: never."""
        self._last_end_s = 0.0

    def complete(
        self,
        output: SchedulerOutput,
        drawn_ids: Sequence[str],
        arrival_times_s: Mapping[str, float],
        end_s: float,
    ) -> None:
        """Count the gaps of a step that is complete.

        Args:
            output: The step.
            drawn_ids: Requests that got a token.
            arrival_times_s: Of all that live, those that end with this step included.
            end_s: When the step ended.
        """
        for request_id in output.preempted_req_ids:
            self._apart.setdefault(request_id, self._last_end_s)
        for new in output.scheduled_new_reqs:
            self._apart.setdefault(new.request_id, None)
        num_together = len(drawn_ids) - self._count_apart(drawn_ids, arrival_times_s, end_s)
        if num_together:
            self._itl_s.add(end_s - self._last_end_s, num_together)
        self._last_end_s = end_s

    def _count_apart(
        self, drawn_ids: Sequence[str], arrival_times_s: Mapping[str, float], end_s: float
    ) -> int:
        if not self._apart:
            return 0
        drawn_apart = self._apart.keys() & drawn_ids
        for request_id in drawn_apart:
            last_s = self._apart.pop(request_id)
            if last_s is None:
                self._ttft_s.add(end_s - arrival_times_s[request_id])
            else:
                self._itl_s.add(end_s - last_s)
        return len(drawn_apart)
