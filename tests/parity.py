"""The rule for comparing token ids of two runs that should agree (docs: near-ties).

At the first divergence of a request, look at how close the call was: the gap of the two best
logits (greedy), or the distance of the uniform to the edge of the CDF (sampled). Under `NEAR_TIE`
it counts as a tie, is reported, and may happen to at most 1 % of the requests. Anything else fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

NEAR_TIE = 1e-4
MAX_TIE_SHARE = 0.01


class NearTieWarning(UserWarning):
    """A request diverged where two choices were as good as equal."""


@dataclass(frozen=True)
class Divergence:
    request: str
    position: int
    """Index of the first output token that differs."""
    gap: float
    actual: int | None
    expected: int | None

    @property
    def is_tie(self) -> bool:
        return self.gap < NEAR_TIE


@dataclass
class ParityReport:
    """Collects comparisons; `check` applies the rule to all of them."""

    num_requests: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def compare(
        self,
        request: str,
        actual: Sequence[int],
        expected: Sequence[int],
        gap_at: Callable[[int], float],
    ) -> None:
        """Records one request; `gap_at` gives how close the call was at an output position."""
        self.num_requests += 1
        for position in range(max(len(actual), len(expected))):
            ours = actual[position] if position < len(actual) else None
            theirs = expected[position] if position < len(expected) else None
            if ours != theirs:
                gap = gap_at(position)
                self.divergences.append(Divergence(request, position, gap, ours, theirs))
                return

    def check(self, max_tie_share: float = MAX_TIE_SHARE) -> None:
        """Fails on a divergence that is no tie, and on too many ties; warns of the others.

        Args:
            max_tie_share: Ties that may be among the requests.
        """
        assert self.num_requests > 0, "nothing was compared"
        failures = [item for item in self.divergences if not item.is_tie]
        assert not failures, failures
        ties = self.divergences
        assert len(ties) <= max_tie_share * self.num_requests, ties
        for tie in ties:
            warnings.warn(f"near-tie: {tie}", NearTieWarning, stacklevel=2)
