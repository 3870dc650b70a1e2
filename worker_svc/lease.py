"""Who may use this worker: one scheduler at a time, proved by a token.

Owns the lease's state and rules; knows no streams and no device: the worker tells it when the
holder's calls begin and end. Reads time from the clock that it is given. Used on the event loop.

A lease is in use while a call of its holder lives. Outside of calls it is kept for `timeout_s`, so
that a holder gets from Initialize to Execute undisturbed, and a holder that died between the two
does not keep the worker for good.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pagewire.kit.errors import FailedPreconditionError, InvalidRequestError

MAX_SCHEDULER_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class Lease:
    """What a scheduler shows with every call and frame."""

    scheduler_id: str
    epoch: int
    """Random, new at each start of the scheduler's process."""
    token: int
    """Issued by the worker with each grant."""


class LeaseManager:
    """At most one lease. `grant` never takes it from a holder that is using it."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._lease: Lease | None = None
        self._num_calls = 0
        self._last_use_s = clock()

    @property
    def holder(self) -> Lease | None:
        """The lease that stands in the way of another scheduler, if any."""
        expired = self._num_calls == 0 and self._clock() - self._last_use_s >= self._timeout_s
        return None if expired else self._lease

    def grant(self, scheduler_id: str, epoch: int) -> Lease:
        """Issue a lease with a new token; all earlier tokens are void.

        A holder's own scheduler id may replace it while no call of the holder lives: its process
        was started again, or it lost the answer.

        Raises:
            FailedPreconditionError: Somebody else holds it, or a call of the holder lives.
            InvalidRequestError: The scheduler id is empty or too long.
        """
        if not 0 < len(scheduler_id) <= MAX_SCHEDULER_ID_CHARS:
            rule = f"lease.scheduler_id must have 1 to {MAX_SCHEDULER_ID_CHARS} characters"
            raise InvalidRequestError(rule, reason="INVALID_LEASE", field="lease.scheduler_id")
        held = self.holder
        if held is not None and (self._num_calls > 0 or held.scheduler_id != scheduler_id):
            raise self._held(held)
        self._lease = Lease(scheduler_id, epoch, secrets.randbits(63) + 1)
        self._num_calls = 0
        self._last_use_s = self._clock()
        return self._lease

    def check(self, lease: Lease) -> None:
        """Accept the current lease only.

        Raises:
            FailedPreconditionError: The lease is not, or no longer, the current one.
        """
        if lease != self._lease:
            holder = self.holder
            raise FailedPreconditionError(
                "this lease is not valid any more: call Initialize for a new one",
                reason="LEASE_LOST",
                metadata={"holder": holder.scheduler_id} if holder is not None else None,
            )

    @contextmanager
    def in_use(self, lease: Lease) -> Iterator[None]:
        """Mark that a call of the holder lives for the block."""
        self.check(lease)
        self._num_calls += 1
        try:
            yield
        finally:
            if lease == self._lease:
                self._num_calls -= 1
                self._last_use_s = self._clock()

    def release(self, lease: Lease) -> None:
        """End the lease; does nothing if it is not the current one any more."""
        if lease == self._lease:
            self._lease = None
            self._num_calls = 0

    def _held(self, held: Lease) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"the worker is leased to scheduler {held.scheduler_id}",
            reason="LEASE_HELD",
            metadata={"holder": held.scheduler_id},
        )
