"""The choice for one prompt: what the replicas have of it, their figures, then the policy.

It is told who may be chosen, and sends nothing: the pool does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.routing.policies import PolicyName, RoutingPolicy
from gateway.routing.prefix_match import PromptPrefix, match_prefix
from gateway.routing.replica import Replica


@dataclass(slots=True)
class RoutingCounters:
    """What the choices came to."""

    num_prompt_tokens: int = 0
    """Of prompts that were sent to a replica."""
    num_matched_tokens: int = 0
    """Of those, known to be cached at the replica that was chosen."""


class Router:
    """A policy at work. Used from one event loop."""

    def __init__(self, policy: PolicyName) -> None:
        self.counters = RoutingCounters()
        self._policy = RoutingPolicy(policy)

    @property
    def wants_prefixes(self) -> bool:
        """Whether it matters what is cached where."""
        return self._policy.wants_prefixes

    def forget(self, key: str) -> None:
        """Drop what is known of a replica that left."""
        self._policy.forget(key)

    def route(self, able: Sequence[Replica], prompt: PromptPrefix) -> tuple[Replica, int]:
        """Return the replica and how many leading tokens it is known to have.

        When every one has failed too often lately, they are used as if none had: a breaker moves
        requests to others, it never makes an outage of its own.
        """
        able = [replica for replica in able if replica.allows_requests] or able
        matched = [0] * len(able)
        if self._policy.wants_prefixes:
            matched = match_prefix(prompt, [replica.index for replica in able])
        known = [replica for replica in able if replica.load.is_known]
        # Who does not tell may be stuck: it counts as the most loaded.
        unknown = (
            max((each.load.num_requests(each.client.num_requests) for each in known), default=0),
            max((each.load.num_tokens_waiting for each in known), default=0),
        )
        places = {replica.target: place for place, replica in enumerate(able)}
        chosen = self._policy.choose(
            [
                replica.candidate(num_matched, *unknown)
                for replica, num_matched in zip(able, matched, strict=True)
            ],
            len(prompt.token_ids),
        )
        place = places[chosen.key]
        self.counters.num_prompt_tokens += len(prompt.token_ids)
        self.counters.num_matched_tokens += matched[place]
        return able[place], matched[place]
