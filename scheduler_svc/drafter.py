"""Where drafts come from: the seam for prompt lookup today and for a draft model one day.

A `Drafter` is an engine's; it gives every request that may be drafted for a `DraftSource` of its
own. Neither knows blocks, steps or acceptance: `speculation` asks them. A draft model would run on
the worker and send its proposals with a step's output; its source would hand out what came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagewire.engine_config import SpeculativeConfig
from scheduler_svc.ngram import NgramIndex


class DraftSource(Protocol):
    """Guesses how one request goes on."""

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Return up to `max_tokens` guesses of what follows.

        Args:
            token_ids: Prompt and output so far; from call to call it only grows.
            max_tokens: At least 1.
        """


class Drafter(Protocol):
    """Drafts for the requests of one engine."""

    @property
    def max_drafts(self) -> int:
        """Most drafts of a request in one step."""

    def begin(self) -> DraftSource:
        """Return the source of one more request."""


class NgramDrafter:
    """Prompt lookup: the last tokens occurred before, so what followed them may follow again."""

    def __init__(self, max_drafts: int, shortest: int, longest: int) -> None:
        self.max_drafts = max_drafts
        self._shortest = shortest
        self._longest = longest

    def begin(self) -> DraftSource:
        return NgramIndex(self._shortest, self._longest)


def make_drafter(config: SpeculativeConfig) -> Drafter | None:
    """Build the configured drafter; None where nothing is drafted."""
    if config.speculative_method == "none":
        return None
    return NgramDrafter(
        config.num_speculative_tokens, config.prompt_lookup_min, config.prompt_lookup_max
    )
