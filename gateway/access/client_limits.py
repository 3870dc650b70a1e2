"""How much one client may ask for: rates and how many requests at a time.

Pure figures and arithmetic; the clock's reading is passed in. `gateway.access.clients` keeps one
set of them a client.
"""

from __future__ import annotations

from dataclasses import dataclass

_SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of one client; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(name, value, "must be at least 1, or none")


class TokenBucket:
    """A rate: fills by `per_minute` up to one minute's worth; starts full.

    What is taken may exceed what is there: the debt fills up first.
    """

    def __init__(self, per_minute: float, now_s: float) -> None:
        self._per_second = per_minute / _SECONDS_PER_MINUTE
        self._capacity = self._level = float(per_minute)
        self._updated_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until one may be taken without a debt; 0: now."""
        self._fill(now_s)
        return max(0.0, 1.0 - self._level) / self._per_second

    def take(self, amount: float, now_s: float) -> None:
        self._fill(now_s)
        self._level -= amount

    def give_back(self, amount: float, now_s: float) -> None:
        """Put back what was taken for nothing; there is never more than a minute's worth."""
        self._fill(now_s)
        self._level = min(self._capacity, self._level + amount)

    def _fill(self, now_s: float) -> None:
        filled = self._level + (now_s - self._updated_s) * self._per_second
        self._level = min(self._capacity, filled)
        self._updated_s = now_s
