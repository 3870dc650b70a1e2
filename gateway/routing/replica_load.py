"""How loaded one replica is: its scheduler's last report, and what this gateway did since.

Reports come a few times a second; between two of them a burst of requests would all go to the
replica that was idle last. So our own adds since the report count on top. It knows no clock:
whoever follows the reports says when they have stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagewire.v1.scheduler_pb2 import WatchLoadResponse


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a scheduler says of itself."""

    num_requests: int
    """Running and waiting."""
    num_tokens_waiting: int
    is_ready: bool
    """Whether it has its workers and is in no pause."""
    message: WatchLoadResponse = field(default_factory=WatchLoadResponse, compare=False)
    """As it came, for metrics."""


class ReplicaLoad:
    """The load of one replica, as far as it is known."""

    def __init__(self) -> None:
        self._report: LoadReport | None = None
        self._own_at_report = 0
        self._tokens_added = 0

    @property
    def message(self) -> WatchLoadResponse | None:
        """The last report as it came; None: no reports come."""
        return None if self._report is None else self._report.message

    @property
    def is_known(self) -> bool:
        """Whether reports come."""
        return self._report is not None

    @property
    def is_ready(self) -> bool:
        """Whether requests run there now; without a report, they may well."""
        return self._report is None or self._report.is_ready

    @property
    def num_tokens_waiting(self) -> int:
        reported = 0 if self._report is None else self._report.num_tokens_waiting
        return reported + self._tokens_added

    def num_requests(self, num_own: int) -> int:
        """Return the requests there.

        Args:
            num_own: Those of this gateway now. There are never fewer: a report may be older than
                requests that it does not have yet.
        """
        if self._report is None:
            return num_own
        return max(num_own, self._report.num_requests + num_own - self._own_at_report)

    def take(self, report: LoadReport, num_own: int) -> None:
        """Take a report; `num_own` as in `num_requests`."""
        self._report = report
        self._own_at_report = num_own
        self._tokens_added = 0

    def added(self, num_tokens: int) -> None:
        """Note that this gateway added a request with so many tokens to compute.

        Without reports they are not counted, since nothing would ever take them off again; whoever
        chooses takes such a replica for as loaded as any.
        """
        if self._report is not None:
            self._tokens_added += num_tokens

    def lost(self) -> None:
        """No reports come any more."""
        self._report = None
        self._tokens_added = 0
