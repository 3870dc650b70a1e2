"""Log-probabilities on their way: columns on the wire, a row a token here, and at last spelled.

Engines know token ids only; the bytes of the tokens come from the tokenizer service, in the order
of `ids_to_spell`. Knows nothing of requests and of the APIs that show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.generation import Logprob, TokenLogprobs
from gateway.streams import StreamLostError, check_columns
from pagewire.v1 import common_pb2, scheduler_pb2


@dataclass(frozen=True, slots=True)
class LogprobRow:
    """Of one token, as the engine sent it."""

    logprob: float
    """-inf where it could not be drawn at all."""
    rank: int
    """1 is the likeliest token of the vocabulary."""
    top_token_ids: Sequence[int]
    """The likeliest tokens, falling, or those that the request names, in its order."""
    top_logprobs: Sequence[float]

    @property
    def num_to_spell(self) -> int:
        """Token ids whose bytes it needs."""
        return 1 + len(self.top_token_ids)


def read_prompt_logprobs(
    outputs: scheduler_pb2.EngineOutputs,
) -> Iterator[tuple[int, list[LogprobRow]]]:
    """The prompt logprobs of a frame, with the handle of their request: all tokens but the first.

    Raises:
        StreamLostError: Columns do not fit.
    """
    counts = outputs.prompt_logprob_counts
    check_columns(outputs.prompt_logprob_handles, counts)
    rows = _read_rows(outputs.prompt_logprobs)
    yield from _split(rows, outputs.prompt_logprob_handles, counts)


def read_output_logprobs(outputs: scheduler_pb2.EngineOutputs) -> Mapping[int, list[LogprobRow]]:
    """The logprobs of a frame's new tokens by handle: as many rows as the handle has new tokens.

    Raises:
        StreamLostError: Columns do not fit.
    """
    if not outputs.logprob_handles:
        return {}
    check_columns(outputs.handles, outputs.token_counts)
    counts = dict(zip(outputs.handles, outputs.token_counts, strict=True))
    handles = outputs.logprob_handles
    rows = _read_rows(outputs.logprobs)
    return dict(_split(rows, handles, [counts.get(handle, 0) for handle in handles]))


def ids_to_spell(token_ids: Iterable[int], rows: Iterable[LogprobRow]) -> Iterator[int]:
    """Yield the token ids whose bytes `spell` needs, in its order; some come more than once."""
    for token_id, row in zip(token_ids, rows, strict=True):
        yield token_id
        yield from row.top_token_ids


def spell(
    token_ids: Iterable[int], rows: Iterable[LogprobRow], token_bytes: Iterator[bytes]
) -> list[TokenLogprobs]:
    """Put tokens, their logprobs and their bytes together; takes what it needs of `token_bytes`."""
    return [
        TokenLogprobs(
            Logprob(token_id, next(token_bytes), row.logprob, row.rank),
            [
                Logprob(top_id, next(token_bytes), logprob, rank)
                for rank, (top_id, logprob) in enumerate(
                    zip(row.top_token_ids, row.top_logprobs, strict=True), 1
                )
            ],
        )
        for token_id, row in zip(token_ids, rows, strict=True)
    ]


def _split(
    rows: Sequence[LogprobRow], handles: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[int, list[LogprobRow]]]:
    if sum(counts) != len(rows):
        raise StreamLostError("counts and rows of logprobs do not fit")
    start = 0
    for handle, count in zip(handles, counts, strict=True):
        yield handle, list(rows[start : start + count])
        start += count


def _read_rows(columns: common_pb2.LogprobColumns) -> list[LogprobRow]:
    top_counts, top_token_ids = columns.top_counts, columns.top_token_ids
    check_columns(columns.logprobs, columns.ranks, top_counts)
    check_columns(top_token_ids, columns.top_logprobs)
    if sum(top_counts) != len(top_token_ids):
        raise StreamLostError("counts and candidates of logprobs do not fit")
    rows, start = [], 0
    for logprob, rank, count in zip(columns.logprobs, columns.ranks, top_counts, strict=True):
        end = start + count
        rows.append(
            LogprobRow(logprob, rank, top_token_ids[start:end], columns.top_logprobs[start:end])
        )
        start = end
    return rows
