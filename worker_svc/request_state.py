"""One request on a worker, and what a step computes of it.

Owns the request's arrays: token ids and block table, which grow by doubling, so that a step copies
nothing of what is known. What the sampler needs is in the sampling table, at the request's slot.
Knows nothing of steps and of other requests. Kept by the input batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker_svc.sampler.metadata import TokenLogprobs
from worker_svc.step import NewRequest, RowFailure

_INITIAL_TOKENS = 256
_INITIAL_BLOCKS = 16


@dataclass(slots=True)
class RequestState:
    """One request. `num_computed_tokens` counts tokens whose KV is written or being written."""

    handle: int
    slot: int
    """Its place in the sampling table."""
    num_prompt_tokens: int
    num_tokens: int
    """Prompt and output tokens known."""
    num_computed_tokens: int
    num_blocks: int
    token_ids: npt.NDArray[np.int32]
    """Grows by doubling; the first `num_tokens` are meant."""
    block_ids: npt.NDArray[np.int32]
    """Grows by doubling; the first `num_blocks` are meant."""
    failure: RowFailure | None = None
    """Why no later step can sample for it."""
    is_over: bool = False
    """It failed, or it ended while the masks of a step were made: no later step samples for it."""
    num_prompt_logprobs: int = 0
    """Likeliest tokens to give beside each prompt token."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Gathered so far, from the second prompt token on; None: not asked for, or given already."""

    @classmethod
    def from_new_request(cls, new: NewRequest, slot: int) -> RequestState:
        tokens = [*new.prompt_token_ids, *new.output_token_ids]
        state = cls(
            handle=new.handle,
            slot=slot,
            num_prompt_tokens=len(new.prompt_token_ids),
            num_tokens=0,
            num_computed_tokens=new.num_computed_tokens,
            num_blocks=0,
            token_ids=np.zeros(max(_INITIAL_TOKENS, len(tokens)), dtype=np.int32),
            block_ids=np.zeros(max(_INITIAL_BLOCKS, len(new.block_ids)), dtype=np.int32),
        )
        if new.sampling.prompt_logprobs is not None and not new.output_token_ids:
            # A resumed request that has output got them with its first token.
            state.num_prompt_logprobs, state.prompt_logprobs = new.sampling.prompt_logprobs, []
        state.append_tokens(tokens)
        state.append_blocks(new.block_ids)
        return state

    def fail(self, failure: RowFailure) -> None:
        self.failure, self.is_over = failure, True

    def append_tokens(self, token_ids: Sequence[int]) -> None:
        self.put_drafts(token_ids)
        self.num_tokens += len(token_ids)

    def append_token(self, token_id: int) -> None:
        """What `append_tokens` does, for the one token that most steps give."""
        if self.num_tokens == len(self.token_ids):
            self.token_ids = _with_room(self.token_ids, self.num_tokens + 1)
        self.token_ids[self.num_tokens] = token_id
        self.num_tokens += 1

    def append_sampled(self, token_ids: Sequence[int]) -> None:
        """Sampled tokens, at least one; those before the last one are drafts, computed already."""
        self.append_tokens(token_ids)
        self.num_computed_tokens += len(token_ids) - 1

    def put_drafts(self, token_ids: Sequence[int]) -> None:
        """Write tokens behind the known ones without making them known."""
        end = self.num_tokens + len(token_ids)
        self.token_ids = _with_room(self.token_ids, end)
        self.token_ids[self.num_tokens : end] = token_ids

    def append_blocks(self, block_ids: Sequence[int]) -> None:
        self.block_ids = _with_room(self.block_ids, self.num_blocks + len(block_ids))
        self.block_ids[self.num_blocks : self.num_blocks + len(block_ids)] = block_ids
        self.num_blocks += len(block_ids)


@dataclass(slots=True)  # frozen ones take three times as long to make, for each row of each step
class BatchRow:
    """One scheduled request of a step: tokens [start, start + num_tokens) of its sequence.

    The last `num_drafts` of them are drafts, which follow all known tokens. Never changed.
    """

    state: RequestState
    start: int
    num_tokens: int
    num_drafts: int = 0

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def known_end(self) -> int:
        return self.start + self.num_tokens - self.num_drafts

    @property
    def samples(self) -> bool:
        """The step computes the last known token, so that the next one can be chosen."""
        return self.start + self.num_tokens - self.num_drafts == self.state.num_tokens

    @property
    def draft_token_ids(self) -> npt.NDArray[np.int32]:
        """[num_drafts]; until the request gets its sampled tokens."""
        return self.state.token_ids[self.known_end : self.end]


def _with_room(array: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.int32]:
    """The array itself, or a longer copy of at least `size`."""
    if size <= len(array):
        return array
    grown = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    grown[: len(array)] = array
    return grown
