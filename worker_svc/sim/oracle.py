"""What a request alone must get from the simulated model, computed from its tokens, without pages.

Tests compare a system's output with this: whatever was scheduled, preempted, cached or recovered,
tokens must be these. Shares only the arithmetic (`hashing`, `sampling`) and the rule of thinking
budgets with the simulated runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pagewire.sampling_params import SamplingParams
from worker_svc.grammar_masks import Bitmasks
from worker_svc.sim.hashing import CHAIN_START, GROUP_FACTOR, MASK, POWER, next_chain
from worker_svc.sim.sampling import SimVocabulary, choose_token
from worker_svc.thinking_budget import ThinkingState

MaskOf = Callable[[Sequence[int]], Bitmasks | None]
"""The grammar's mask after an output so far: [ceil(vocab_size / 8)], or None where it has none."""


def expected_tokens(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    num_tokens: int,
    vocabulary: SimVocabulary,
    mask_of: MaskOf | None = None,
    windows: Sequence[int] = (0,),
) -> list[int]:
    """The first `num_tokens` output tokens, whatever would stop the request.

    Fewer, if the masks leave none. `windows` are those of the model's KV cache groups.
    """
    tokens = _tokens(prompt_token_ids, params, vocabulary, mask_of, windows)
    return list(islice(tokens, num_tokens))


def expected_output(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    max_tokens: int,
    vocabulary: SimVocabulary,
    mask_of: MaskOf | None = None,
    windows: Sequence[int] = (0,),
) -> list[int]:
    """The output of a request that stops by its parameters, after `max_tokens` at the latest.

    The token that stops it is the last one. Stop strings are not looked at.
    """
    stops = set(params.stop_token_ids)
    if not params.ignore_eos:
        stops |= set(vocabulary.eos_token_ids)
    limit = max_tokens if params.max_tokens is None else min(max_tokens, params.max_tokens)
    output: list[int] = []
    tokens = _tokens(prompt_token_ids, params, vocabulary, mask_of, windows)
    for token_id in islice(tokens, limit):
        output.append(token_id)
        if token_id in stops and len(output) >= params.min_tokens:
            break
    return output


def _tokens(
    prompt_token_ids: Iterable[int],
    params: SamplingParams,
    vocabulary: SimVocabulary,
    mask_of: MaskOf | None,
    windows: Sequence[int],
) -> Iterator[int]:
    """Output tokens without end, or up to the one for which none is allowed."""
    context = _Context() if tuple(windows) == (0,) else _WindowedContext(windows)
    for token_id in prompt_token_ids:
        context.append(token_id)
    output: list[int] = []
    seed = (params.seed or 0) & MASK
    while True:
        mask = None if mask_of is None else mask_of(output)
        forced = _forced_token(params, output)
        chosen = choose_token(context.value, params, seed, len(output), vocabulary, mask, forced)
        if chosen is None:
            return
        yield chosen
        context.append(chosen)
        output.append(chosen)


def _forced_token(params: SamplingParams, output: Sequence[int]) -> int | None:
    budget = params.thinking_budget
    return None if budget is None else ThinkingState(budget, output).forced()[0]


class _Context:
    """The context value of a growing sequence."""

    def __init__(self) -> None:
        self.value = 0
        self._chain = CHAIN_START
        self._power = 1

    def append(self, token_id: int) -> None:
        self._chain = next_chain(self._chain, token_id)
        self.value = (self.value + self._chain * self._power) & MASK
        self._power = (self._power * POWER) & MASK


class _WindowedContext:
    """The same over several KV cache groups, straight from the definition in `hashing`."""

    def __init__(self, windows: Sequence[int]) -> None:
        self.value = 0
        self._windows = windows
        self._terms: list[int] = []
        self._chain = CHAIN_START

    def append(self, token_id: int) -> None:
        before = CHAIN_START if set(self._windows) == {1} else self._chain
        for group_id, window in enumerate(self._windows):
            if window:
                before += self._sum_of_last(window - 1) * GROUP_FACTOR**group_id
        self._chain = next_chain(before & MASK, token_id)
        self._terms.append(self._chain * pow(POWER, len(self._terms), MASK + 1))
        contexts = (
            self._sum_of_last(window or len(self._terms)) * GROUP_FACTOR**group_id
            for group_id, window in enumerate(self._windows)
        )
        self.value = sum(contexts) & MASK

    def _sum_of_last(self, num_tokens: int) -> int:
        return sum(self._terms[max(0, len(self._terms) - num_tokens) :])
