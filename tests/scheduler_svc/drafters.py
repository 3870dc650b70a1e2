"""Drafters for tests: they know what the simulated model will say, and are wrong on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.drafter import DraftSource
from tests.scheduler_svc.factories import VOCAB_SIZE
from tests.scheduler_svc.sim_model import kv_of, next_token_id


def continuation(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """What the simulated model says after these tokens."""
    kvs: list[int] = []
    for token_id in token_ids:
        kvs.append(kv_of(kvs[-1] if kvs else 0, token_id))
    tokens: list[int] = []
    for _ in range(num_tokens):
        tokens.append(next_token_id(kvs))
        kvs.append(kv_of(kvs[-1], tokens[-1]))
    return tokens


@dataclass(frozen=True)
class KnowingDrafter:
    """How many guesses it makes, and which are right, depends on the tokens alone."""

    max_drafts: int = 4
    percent_right: int = 70

    def begin(self) -> DraftSource:
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        assert max_tokens >= 1
        chance = hash(tuple(token_ids))
        right = continuation(token_ids, chance % (max_tokens + 1))
        return [
            token_id
            if hash((chance, place)) % 100 < self.percent_right
            else (token_id + 1) % VOCAB_SIZE
            for place, token_id in enumerate(right)
        ]
