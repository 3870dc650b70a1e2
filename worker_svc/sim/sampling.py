"""Which token the simulated model gives for a context: a function of hash, seed and output index.

Owns the vocabulary's use. Greedy requests hash the context alone; others mix in a draw that is a
pure function of (seed, output index), as in the real sampler. Honours min_tokens,
allowed_token_ids, grammar masks and what a thinking budget forces; penalties, biases and truncation
have no meaning here and are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagewire.sampling_params import SamplingParams
from worker_svc.grammar_masks import Bitmasks
from worker_svc.sim.hashing import mix64
from worker_svc.step import LogprobColumns

SAMPLER_VERSION = "sim-3"
"""Changes with whatever changes tokens."""
EOS_ODDS = 256
"""One token in so many is an end-of-sequence token, so that stopping is exercised."""
_MAX_SPECIAL_TOKENS = 256


@dataclass(frozen=True, slots=True)
class SimVocabulary:
    """The model's vocabulary, as far as the simulation knows it."""

    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    num_low: int = field(init=False)
    """Ids below are never drawn: tokenizers keep their special tokens there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_low", min(_MAX_SPECIAL_TOKENS, self.vocab_size // 2))

    def logprobs(self, tokens: Iterable[tuple[int, int | Sequence[int] | None]]) -> LogprobColumns:
        """Falling values over each token and the ids after it: well-formed, meaningless.

        Args:
            tokens: Token ids, with how many ids are asked for beside each, or which ones; None: not
                even its own.
        """
        counts: list[int] = []
        token_ids: list[int] = []
        logprobs: list[float] = []
        for token_id, top in tokens:
            if top is None:
                counts.append(0)
                continue
            if isinstance(top, int):
                top = [(token_id + i) % self.vocab_size for i in range(top)]
            counts.append(1 + len(top))
            token_ids += [token_id, *top]
            logprobs += [-0.5, *(-0.5 * (i + 1) for i in range(len(top)))]
        return LogprobColumns(counts, token_ids, logprobs, [1 if count else 0 for count in counts])


def choose_token(
    context: int,
    params: SamplingParams,
    seed: int,
    output_index: int,
    vocabulary: SimVocabulary,
    mask: Bitmasks | None = None,
    forced: int | None = None,
) -> int | None:
    """The token that follows `context` as output number `output_index`; None if none is allowed.

    Args:
        context: The value of all tokens before it.
        params: The request's.
        seed: The request's, 64 bits.
        output_index: Number of output tokens before it.
        vocabulary: What may be drawn at all.
        mask: [ceil(vocab_size / 8)], one bit a token id: then any of those, none left out.
        forced: What must come, if the mask allows it.
    """
    if forced is not None and (mask is None or mask[forced // 8] >> forced % 8 & 1):
        return forced
    value = mix64(context)
    if not params.is_greedy:
        value = mix64(value ^ mix64(seed ^ mix64(output_index + 1)))
    eos, may_end = vocabulary.eos_token_ids, output_index >= params.min_tokens
    excluded = eos if may_end else (*eos, *params.stop_token_ids)
    if mask is not None or params.allowed_token_ids:
        # The real model may draw an end-of-sequence token that is allowed, so this one does.
        forbidden = () if may_end else excluded
        allowed = _allowed_ids(params, mask, forbidden, vocabulary.vocab_size)
        return int(allowed[value % len(allowed)]) if len(allowed) else None
    if eos and may_end and value % EOS_ODDS == 0:
        return eos[(value >> 8) % len(eos)]
    span = vocabulary.vocab_size - vocabulary.num_low
    place = (value >> 16) % span
    # Past excluded ids to the next one; a vocabulary of nothing else keeps the last.
    for _ in excluded:
        if vocabulary.num_low + place not in excluded:
            break
        place = (place + 1) % span
    return vocabulary.num_low + place


def _allowed_ids(
    params: SamplingParams, mask: Bitmasks | None, forbidden: Sequence[int], vocab_size: int
) -> Sequence[int] | npt.NDArray[np.int64]:
    """What the parameters allow, in their order, or else the mask, in rising order."""
    allowed: Sequence[int] = params.allowed_token_ids
    if forbidden:
        allowed = [token_id for token_id in allowed if token_id not in forbidden]
    if mask is None:
        return allowed
    bits = np.unpackbits(mask, count=vocab_size, bitorder="little")
    if params.allowed_token_ids:
        return [token_id for token_id in allowed if bits[token_id]]
    bits[list(forbidden)] = 0
    return bits.nonzero()[0]
