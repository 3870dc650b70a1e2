"""Which requests may be what kills workers, so that a poison request harms nobody else.

A request that was in the step under way when a worker died, or failed as a whole, gets one
suspicion. With `ALONE` it runs alone, with `FINAL` it is to be ended. Getting past the token at
which it was last suspected clears it: a request that kills fails at that token again, an innocent
one doesn't. Owned by `scheduler`; it knows no worker and no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler_svc.request import Request

ALONE = 2
FINAL = 3


def final(counts: Mapping[str, int]) -> list[str]:
    """Ids of requests that are to be ended."""
    return [request_id for request_id, count in counts.items() if count >= FINAL]


class Suspects:
    """The suspected requests among the live ones, and how often each was suspected."""

    def __init__(self) -> None:
        self._num_suspicions: dict[str, int] = {}
        self._num_tokens: dict[str, int] = {}
        """Tokens that a request had when it was last suspected."""

    def __len__(self) -> int:
        return len(self._num_suspicions)

    def add(self, request: Request, num_suspicions: int) -> None:
        """Take over what another engine has seen of a request."""
        if num_suspicions > 0:
            self._num_suspicions[request.request_id] = num_suspicions
            self._num_tokens[request.request_id] = request.num_tokens

    def suspect(self, requests: Iterable[Request]) -> dict[str, int]:
        """Count one suspicion for each live request of a step that went wrong.

        Returns:
            How often each of them has been suspected by now.
        """
        counts = {}
        for request in requests:
            if not request.status.is_finished:
                count = self._num_suspicions.get(request.request_id, 0) + 1
                self.add(request, count)
                counts[request.request_id] = count
        return counts

    def clear_passed(self, requests: Iterable[Request]) -> None:
        """Acquit those that a step which went well brought past their token."""
        for request in requests if self._num_tokens else ():
            at = self._num_tokens.get(request.request_id)
            if at is not None and request.num_tokens > at:
                self.forget(request)

    def forget(self, request: Request) -> None:
        """Drop a request that is acquitted, or ended. Idempotent."""
        self._num_suspicions.pop(request.request_id, None)
        self._num_tokens.pop(request.request_id, None)

    def may_join(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether a waiting request may run beside those that run."""
        if not running:
            return True
        return not self._runs_alone(request) and not any(map(self._runs_alone, running))

    def _runs_alone(self, request: Request) -> bool:
        return self._num_suspicions.get(request.request_id, 0) >= ALONE
