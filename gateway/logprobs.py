"""Log-probabilities as engines send them: columns on the wire, a record a token here.

Knows nothing of text and of the APIs that show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.streams import StreamLostError, check_columns
from pagewire.v1 import common_pb2, scheduler_pb2


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one token."""

    logprob: float
    """-inf where it could not be drawn at all."""
    rank: int
    """1 is the likeliest token of the vocabulary."""
    top_token_ids: Sequence[int]
    """The likeliest tokens, falling."""
    top_logprobs: Sequence[float]


PromptLogprobs = list[TokenLogprobs | None]
"""One a prompt token; the first follows nothing and has None."""


def read_prompt_logprobs(
    outputs: scheduler_pb2.EngineOutputs,
) -> Iterator[tuple[int, PromptLogprobs]]:
    """The prompt logprobs of a frame, with the handle of their request.

    Raises:
        StreamLostError: Columns do not fit.
    """
    counts = outputs.prompt_logprob_counts
    check_columns(outputs.prompt_logprob_handles, counts)
    tokens = _read_tokens(outputs.prompt_logprobs)
    if sum(counts) != len(tokens):
        raise StreamLostError("counts and rows of prompt logprobs do not fit")
    start = 0
    for handle, count in zip(outputs.prompt_logprob_handles, counts, strict=True):
        yield handle, [None, *tokens[start : start + count]]
        start += count


def _read_tokens(columns: common_pb2.LogprobColumns) -> list[TokenLogprobs]:
    top_counts, top_token_ids = columns.top_counts, columns.top_token_ids
    check_columns(columns.logprobs, columns.ranks, top_counts)
    check_columns(top_token_ids, columns.top_logprobs)
    if sum(top_counts) != len(top_token_ids):
        raise StreamLostError("counts and candidates of logprobs do not fit")
    tokens, start = [], 0
    for logprob, rank, count in zip(columns.logprobs, columns.ranks, top_counts, strict=True):
        end = start + count
        tokens.append(
            TokenLogprobs(logprob, rank, top_token_ids[start:end], columns.top_logprobs[start:end])
        )
        start = end
    return tokens
