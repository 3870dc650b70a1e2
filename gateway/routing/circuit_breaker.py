"""A circuit breaker toward one replica: after failures in a row it is left alone for a while.

Closed: used. Open: not used until a backoff has passed. Half open: one request at a time tries;
its success closes the breaker, its failure opens it again for twice as long. It knows no clock
(time is an argument) and not what counts as a failure: its owner does.
"""

from __future__ import annotations

FAILURES_TO_OPEN = 5
"""Requests in a row that were not admitted."""
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0
PROBE_TIMEOUT_S = 10.0
"""After so long without an answer to a trial, the next one may try."""


class CircuitBreaker:
    """State of one replica. Closed with no failure at the beginning."""

    def __init__(self) -> None:
        self.num_opens = 0
        """How often it opened."""
        self._num_failures = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._opened_at_s: float | None = None
        self._probe_at_s: float | None = None

    @property
    def is_closed(self) -> bool:
        return self._opened_at_s is None

    def allows(self, now_s: float) -> bool:
        """Whether a request may go there."""
        if self._opened_at_s is None:
            return True
        if now_s < self._opened_at_s + self._backoff_s:
            return False
        return self._probe_at_s is None or now_s >= self._probe_at_s + PROBE_TIMEOUT_S

    def sent(self, now_s: float) -> None:
        """Note that a request goes there; when half open it is the trial."""
        if self._opened_at_s is not None and now_s >= self._opened_at_s + self._backoff_s:
            self._probe_at_s = now_s

    def succeeded(self) -> None:
        """Note that a request was admitted, or refused for a reason of its own."""
        self._num_failures = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._opened_at_s = self._probe_at_s = None

    def failed(self, now_s: float) -> None:
        """Note that a request was not admitted, by the replica's fault."""
        if self._opened_at_s is None:
            self._num_failures += 1
            if self._num_failures >= FAILURES_TO_OPEN:
                self._open(now_s)
        elif self._probe_at_s is not None:
            self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
            self._open(now_s)
        # Else it was sent before the breaker opened, and says nothing new.

    def unanswered(self) -> None:
        """Note that a request ended before there was an answer: the trial proved nothing."""
        self._probe_at_s = None

    def _open(self, now_s: float) -> None:
        self.num_opens += 1
        self._num_failures = 0
        self._opened_at_s = now_s
        self._probe_at_s = None
