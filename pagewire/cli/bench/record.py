"""What is asked of a server, and what its client saw; plain data, times by one clock."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    prompt: str | Sequence[int]
    """Text, or token ids."""
    max_tokens: int
    due_s: float = 0.0
    """When it is to be sent, in seconds after the run's start; 0: at once."""


@dataclass(slots=True)
class RequestRecord:
    """What one request saw. Times in seconds of the run's clock."""

    due_s: float
    started_s: float = 0.0
    """When it was sent; the connection is made after it."""
    arrivals_s: list[float] = field(default_factory=list)
    """Of each message that had something of the output."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    is_counted_by_server: bool = False
    """Whether the server told the token counts; else a message counts as one token."""
    error: str = ""
    """Why it failed; empty: it did not."""


class Target(Protocol):
    """A server, reached in one way."""

    def run(self, job: Job, record: RequestRecord) -> Awaitable[None]:
        """Send one request and note what comes, to its end.

        Raises:
            BenchRequestError: It failed; what came before stays noted.
        """

    def close(self) -> Awaitable[None]:
        """Let go of connections."""


class BenchRequestError(Exception):
    """A request that did not come to its end; the message is one line."""
