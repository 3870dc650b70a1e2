"""How much of what is looked up in the prefix cache is found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PrefixCacheStats:
    """Tokens looked up and found, at admissions only; grows forever.

    Lookups of preempted requests are apart: they find what the request itself wrote.
    """

    num_queries: int = 0
    num_hits: int = 0
    num_preempted_queries: int = 0
    num_preempted_hits: int = 0

    def record(self, *, num_queries: int, num_hits: int, was_preempted: bool) -> None:
        if was_preempted:
            self.num_preempted_queries += num_queries
            self.num_preempted_hits += num_hits
        else:
            self.num_queries += num_queries
            self.num_hits += num_hits
