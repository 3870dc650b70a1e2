"""Routing policies: from figures of the replicas to the one that a request goes to.

Each policy is a cost; the least one wins, and among equals the one that was chosen longest ago. A
policy knows neither streams nor clocks nor where the figures come from. docs/design/routing.md says
why the numbers are what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

PolicyName = Literal["prefix-aware", "least-loaded", "round-robin"]

TOKENS_PER_REQUEST = 64
"""What a live request costs, in prompt tokens that must be computed."""
OVERLOAD_RATIO = 1.5
OVERLOAD_REQUESTS = 32
"""A replica is overloaded with more requests than this ratio of the least loaded one's, and this
many more besides."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that could take the request."""

    key: str
    """Unique among replicas."""
    num_requests: int
    """Running and waiting there, of all gateways as far as known."""
    num_tokens_waiting: int = 0
    """Prompt tokens of requests that wait there."""
    num_matched_tokens: int = 0
    """Leading tokens of this prompt that it has in its prefix cache."""
    is_ready: bool = True
    """Whether it has its workers and is in no pause; otherwise requests wait there."""


Cost = Callable[[Candidate, int], int]
"""Of a candidate, for a prompt of so many tokens."""


def equal_cost(candidate: Candidate, num_prompt_tokens: int) -> int:
    """All cost the same, so that they take turns."""
    return 0


def load_cost(candidate: Candidate, num_prompt_tokens: int) -> int:
    """What is there already, in prompt tokens."""
    return TOKENS_PER_REQUEST * candidate.num_requests + candidate.num_tokens_waiting


def prefix_cost(candidate: Candidate, num_prompt_tokens: int) -> int:
    """What is there already, and what of this prompt is yet to be computed there."""
    num_new = max(num_prompt_tokens - candidate.num_matched_tokens, 0)
    return load_cost(candidate, num_prompt_tokens) + num_new


_COSTS: dict[PolicyName, Cost] = {
    "round-robin": equal_cost,
    "least-loaded": load_cost,
    "prefix-aware": prefix_cost,
}


class RoutingPolicy:
    """A named policy, and when each replica was chosen last."""

    def __init__(self, name: PolicyName) -> None:
        self.wants_prefixes = name == "prefix-aware"
        """Whether `num_matched_tokens` matters."""
        self._cost = _COSTS[name]
        self._turns = count(1)
        self._last_turn: dict[str, int] = {}

    def choose(self, candidates: Sequence[Candidate], num_prompt_tokens: int) -> Candidate:
        """Return the replica that takes a prompt, and note its turn.

        Args:
            candidates: At least one. Those that are not ready are used only if none is.
            num_prompt_tokens: Of the prompt.
        """
        able = [each for each in candidates if each.is_ready] or list(candidates)
        if self.wants_prefixes:
            able = without_overloaded(able)
        chosen = min(
            able,
            key=lambda each: (
                self._cost(each, num_prompt_tokens),
                self._last_turn.get(each.key, 0),
            ),
        )
        self._last_turn[chosen.key] = next(self._turns)
        return chosen

    def forget(self, key: str) -> None:
        """Drop what is known of a replica that left; no-op if nothing is."""
        self._last_turn.pop(key, None)


def without_overloaded(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Leave out those that no cached prefix makes up for; never all of them."""
    least = min(each.num_requests for each in candidates)
    most = OVERLOAD_RATIO * least + OVERLOAD_REQUESTS
    return [each for each in candidates if each.num_requests <= most]
