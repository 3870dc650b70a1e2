"""What a request alone must get from the simulated model, computed from its tokens, without pages.

Tests compare a system's output with this: whatever was scheduled, preempted, cached or recovered,
tokens must be these. Shares only the arithmetic (`hashing`, `sampling`) with the simulated runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pagewire.sampling_params import SamplingParams
from worker_svc.grammar_masks import Bitmasks
from worker_svc.sim.hashing import CHAIN_START, MASK, POWER, next_chain
from worker_svc.sim.sampling import SimVocabulary, choose_token

MaskOf = Callable[[Sequence[int]], Bitmasks | None]
"""The grammar's mask after an output so far: [ceil(vocab_size / 8)], or None where it has none."""


def expected_tokens(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    num_tokens: int,
    vocabulary: SimVocabulary,
    mask_of: MaskOf | None = None,
) -> list[int]:
    """The first `num_tokens` output tokens, whatever would stop the request.

    Fewer, if the masks leave none.
    """
    return list(islice(_tokens(prompt_token_ids, params, vocabulary, mask_of), num_tokens))


def expected_output(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    max_tokens: int,
    vocabulary: SimVocabulary,
    mask_of: MaskOf | None = None,
) -> list[int]:
    """The output of a request that stops by its parameters, after `max_tokens` at the latest.

    The token that stops it is the last one. Stop strings are not looked at.
    """
    stops = set(params.stop_token_ids)
    if not params.ignore_eos:
        stops |= set(vocabulary.eos_token_ids)
    limit = max_tokens if params.max_tokens is None else min(max_tokens, params.max_tokens)
    output: list[int] = []
    for token_id in islice(_tokens(prompt_token_ids, params, vocabulary, mask_of), limit):
        output.append(token_id)
        if token_id in stops and len(output) >= params.min_tokens:
            break
    return output


def _tokens(
    prompt_token_ids: Iterable[int],
    params: SamplingParams,
    vocabulary: SimVocabulary,
    mask_of: MaskOf | None,
) -> Iterator[int]:
    """Output tokens without end, or up to the one for which none is allowed."""
    context = _Context()
    for token_id in prompt_token_ids:
        context.append(token_id)
    output: list[int] = []
    seed = (params.seed or 0) & MASK
    while True:
        mask = None if mask_of is None else mask_of(output)
        chosen = choose_token(context.value, params, seed, len(output), vocabulary, mask)
        if chosen is None:
            return
        yield chosen
        context.append(chosen)
        output.append(chosen)


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
