"""Where an output stands in its thinking, and which token its budget forces next.

A pure function of the output so far: it is the same after a preemption, a recovery or behind
drafts, however the tokens came. Knows nothing of logits and text. The rule is vLLM's
(`thinking_token_budget` in vllm/v1/worker/gpu/sample/thinking_budget.py): thinking goes on from the
last start of thinking that no end follows, and the tokens behind it count; once the budget is used
up the end is forced token by token, and what the output has of it already is gone on with.

Where the two tags have tokens in common, tags do not overlap: an end lies whole behind the start
that it ends, and a start behind the last end. While the last tokens may begin an end, a start that
overlaps them waits: it is part of that end if the end comes, and counts from its place if not. So
an end that is forced comes whole, and ends the thinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagewire.sampling_params import ThinkingBudget


@dataclass(frozen=True, slots=True)
class _Place:
    """Behind some tokens of an output."""

    num_tokens: int | None
    """Of the thinking that goes on; None: there is none."""
    tail: tuple[int, ...] = ()
    """The last tokens, as many as tags are looked for in; none from before the last end."""


class ThinkingState:
    """One output's."""

    def __init__(self, budget: ThinkingBudget, output_token_ids: Iterable[int] = ()) -> None:
        """Take in an output.

        Args:
            budget: With what the prompt leaves open.
            output_token_ids: Of a resumed request, all so far.
        """
        self._budget = budget
        self._place = _Place(budget.num_open_tokens)
        self.append(output_token_ids)

    def append(self, token_ids: Iterable[int]) -> None:
        """Take in the next tokens."""
        for token_id in token_ids:
            self._place = _next_place(self._place, token_id, self._budget)

    def forced(self, draft_token_ids: Iterable[int] = ()) -> list[int | None]:
        """Return the tokens that must come next, and behind each draft; None: any may.

        Changes nothing.
        """
        place = self._place
        forced = [_forced_at(place, self._budget)]
        for token_id in draft_token_ids:
            place = _next_place(place, token_id, self._budget)
            forced.append(_forced_at(place, self._budget))
        return forced


def _next_place(place: _Place, token_id: int, budget: ThinkingBudget) -> _Place:
    start, end = budget.start_token_ids, budget.end_token_ids
    # A start that waits has fewer tokens behind it than an end has.
    tail = (*place.tail, token_id)[-(len(start) + len(end) - 1) :]
    if place.num_tokens is None:
        return _Place(0 if _ends_with(tail, start) else None, tail)
    num_tokens = place.num_tokens + 1
    if num_tokens >= len(end) and _ends_with(tail, end):
        return _Place(None)
    return _Place(_since_last_start(num_tokens, tail, budget), tail)


def _since_last_start(num_tokens: int, tail: Sequence[int], budget: ThinkingBudget) -> int:
    """How many tokens are behind the last start that is no part of an end, begun or whole.

    Args:
        num_tokens: Those behind the start that counted so far.
        tail: Ends with them, or with the last of them.
        budget: The tags.
    """
    end = budget.end_token_ids
    most = min(len(end), num_tokens, len(tail))
    for num_behind in range(_num_written(num_tokens, tail, end), most):
        if _ends_with(tail[: len(tail) - num_behind], budget.start_token_ids):
            return num_behind
    return num_tokens


def _forced_at(place: _Place, budget: ThinkingBudget) -> int | None:
    if place.num_tokens is None or place.num_tokens < budget.max_tokens:
        return None
    end = budget.end_token_ids
    return end[_num_written(place.num_tokens, place.tail, end)]


def _num_written(num_tokens: int, tail: Sequence[int], end: Sequence[int]) -> int:
    """How many tokens of an end that is not whole the thinking ends with."""
    lengths = range(min(len(end) - 1, num_tokens), 0, -1)
    return next((length for length in lengths if _ends_with(tail, end[:length])), 0)


def _ends_with(tail: Sequence[int], token_ids: Sequence[int]) -> bool:
    return tail[-len(token_ids) :] == token_ids
