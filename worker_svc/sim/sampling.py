"""Which token the simulated model gives for a context: a function of hash, seed and output index.

Owns the vocabulary's use. Greedy requests hash the context alone; others mix in a draw that is a
pure function of (seed, output index), as in the real sampler. Honours min_tokens and
allowed_token_ids; penalties, biases and truncation have no meaning here and are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagewire.sampling_params import SamplingParams
from worker_svc.sim.hashing import mix64

SAMPLER_VERSION = "sim-1"
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


def choose_token(
    context: int, params: SamplingParams, seed: int, output_index: int, vocabulary: SimVocabulary
) -> int | None:
    """The token that follows `context` as output number `output_index`; None if none is allowed."""
    value = mix64(context)
    if not params.is_greedy:
        value = mix64(value ^ mix64(seed ^ mix64(output_index + 1)))
    eos, may_end = vocabulary.eos_token_ids, output_index >= params.min_tokens
    excluded = eos if may_end else (*eos, *params.stop_token_ids)
    if params.allowed_token_ids:
        # The real model may draw an end-of-sequence token that is allowed, so this one does.
        allowed = params.allowed_token_ids
        if not may_end:
            allowed = tuple(token_id for token_id in allowed if token_id not in excluded)
        return allowed[value % len(allowed)] if allowed else None
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
