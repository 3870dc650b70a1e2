"""What a client's thinking budget means to an engine, which knows no text: tags as token ids.

Also where a prompt stands: how many tokens of thinking it leaves open. Pure; the tokenizer service
has made token ids of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.reasoning.think_tags import Begin
from gateway.reasoning.token_counter import TagTokens
from pagewire.sampling_params import SamplingParams, ThinkingBudget


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """The tags as token ids, at least one each."""

    start_token_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]

    @property
    def single(self) -> TagTokens | None:
        """As one token each; None where one has more."""
        if len(self.start_token_ids) != 1 or len(self.end_token_ids) != 1:
            return None
        return TagTokens(self.start_token_ids[0], self.end_token_ids[0])


def with_thinking_budget(
    params: SamplingParams,
    tags: ThinkingTags,
    begin: Begin | None,
    prompt_token_ids: Sequence[int],
) -> SamplingParams:
    """Return the parameters with their budget as the engine keeps it.

    Args:
        params: With a `thinking_token_budget`.
        tags: Those of the model.
        begin: Where outputs begin, as far as the prompt's text tells; None: nobody has read it.
        prompt_token_ids: What outputs follow.
    """
    budget = ThinkingBudget(
        max_tokens=params.thinking_token_budget or 0,
        start_token_ids=tags.start_token_ids,
        end_token_ids=tags.end_token_ids,
        num_open_tokens=num_open_tokens(prompt_token_ids, tags, begin),
    )
    return replace(params, thinking_budget=budget)


def num_open_tokens(
    prompt_token_ids: Sequence[int], tags: ThinkingTags, begin: Begin | None
) -> int | None:
    """Return how many tokens of thinking the prompt leaves open; None: no thinking goes on.

    A prompt that nobody has read is taken by vLLM's rule: thinking goes on where its last start has
    no end behind it.
    """
    if begin in (Begin.ANSWER, Begin.EITHER):
        return None
    token_ids = list(prompt_token_ids)
    start = _last_place(token_ids, tags.start_token_ids)
    if start is not None and not _is_in_an_end(start, token_ids, tags):
        behind = token_ids[start + len(tags.start_token_ids) :]
        if _last_place(behind, tags.end_token_ids) is None:
            return len(behind)
    # Some models reason although no tag says so.
    return 0 if begin is Begin.REASONING else None


def _is_in_an_end(start: int, token_ids: list[int], tags: ThinkingTags) -> bool:
    """Whether the start at a place is a part of an end, which may have its tokens in it."""
    num_end, stop = len(tags.end_token_ids), start + len(tags.start_token_ids)
    near = token_ids[max(0, stop - num_end) : start + num_end]
    return _last_place(near, tags.end_token_ids) is not None


def _last_place(token_ids: list[int], tag: Sequence[int]) -> int | None:
    # Backwards by `index`, which runs in C: a prompt may be long, and this is on the event loop.
    backwards, wanted = token_ids[::-1], list(tag)[::-1]
    place = -1
    try:
        while True:
            place = backwards.index(wanted[0], place + 1)
            if backwards[place : place + len(wanted)] == wanted:
                return len(token_ids) - place - len(wanted)
    except ValueError:
        return None
