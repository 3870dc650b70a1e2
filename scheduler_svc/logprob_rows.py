"""Log-probabilities in columns, from the worker's answer to the client's message.

Plain data: it knows no request and no wire.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LogprobRows:
    """Log-probabilities of one request's new tokens: a row a token, candidates in one column."""

    logprobs: list[float]
    ranks: list[int]
    top_counts: list[int]
    """Candidates of each row."""
    top_token_ids: list[int]
    top_logprobs: list[float]

    @property
    def num_values(self) -> int:
        """Numbers in all columns together."""
        return 3 * len(self.logprobs) + 2 * len(self.top_token_ids)

    def first(self, num_tokens: int) -> LogprobRows:
        """The rows of the first tokens."""
        if num_tokens >= len(self.logprobs):
            return self
        num_top = sum(self.top_counts[:num_tokens])
        return LogprobRows(
            logprobs=self.logprobs[:num_tokens],
            ranks=self.ranks[:num_tokens],
            top_counts=self.top_counts[:num_tokens],
            top_token_ids=self.top_token_ids[:num_top],
            top_logprobs=self.top_logprobs[:num_top],
        )

    def extend(self, later: LogprobRows) -> None:
        """Append the rows of later tokens."""
        self.logprobs += later.logprobs
        self.ranks += later.ranks
        self.top_counts += later.top_counts
        self.top_token_ids += later.top_token_ids
        self.top_logprobs += later.top_logprobs
