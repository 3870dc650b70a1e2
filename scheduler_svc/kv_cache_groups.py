"""Groups of layers with block tables of their own: what each needs of a sequence.

Pure arithmetic over windows and block sizes. It knows no pool, no table and no request. All groups
have blocks of the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvCacheGroupSpec:
    """Layers that share a block table; each of its blocks holds KV of these layers alone."""

    num_layers: int
    sliding_window: int = 0
    """A token sees itself and the `sliding_window - 1` tokens before it; 0: all of them."""

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise ValueError(f"num_layers={self.num_layers}: must be at least 1")
        if self.sliding_window < 0:
            raise ValueError(f"sliding_window={self.sliding_window}: must be at least 0")

    def num_skipped_blocks(self, num_tokens: int, block_size: int) -> int:
        """Leading blocks that no token after the first `num_tokens` sees any part of."""
        if not self.sliding_window:
            return 0
        return max(0, num_tokens - self.sliding_window + 1) // block_size

    def num_hit_blocks(self, num_blocks: int, block_size: int) -> int:
        """Of `num_blocks` full blocks in front, the last ones that later tokens see."""
        return num_blocks - self.num_skipped_blocks(num_blocks * block_size, block_size)

    def max_held_blocks(self, num_tokens: int, block_size: int, max_step_tokens: int) -> int:
        """Most blocks that a sequence holds at a time while it grows to `num_tokens`.

        A step's tokens and the window before them stand in one run of positions, which may begin
        and end anywhere in a block.

        Args:
            num_tokens: The sequence's length in the end.
            block_size: In tokens.
            max_step_tokens: Most tokens between what is surely computed and the end of a step.
        """
        num_blocks = -(-num_tokens // block_size)
        if not self.sliding_window:
            return num_blocks
        run = self.sliding_window - 1 + max_step_tokens
        return min(num_blocks, -(-(run - 1) // block_size) + 1)


KvCacheGroups = tuple[KvCacheGroupSpec, ...]

ONE_FULL_GROUP: KvCacheGroups = (KvCacheGroupSpec(1),)

_MAX_DRAFTED_TOKENS = 129
"""Of one request in one step: the longest draft and the token before it."""
_MAX_OVERLAPPED_TOKENS = 2
"""Of one request that is not drafted for: one in the step under way, one in the next."""


def max_step_tokens(max_num_batched_tokens: int, long_prefill_token_threshold: int) -> int:
    """Most tokens of one request between what is surely computed and the end of a step.

    Args:
        max_num_batched_tokens: Most tokens of a step.
        long_prefill_token_threshold: Most of them for one request, drafts apart; 0: no such cap.
    """
    most = max_num_batched_tokens
    if long_prefill_token_threshold:
        most = min(most, max(long_prefill_token_threshold, _MAX_DRAFTED_TOKENS))
    return max(most, _MAX_OVERLAPPED_TOKENS)


def max_held_blocks(
    groups: Sequence[KvCacheGroupSpec], num_tokens: int, block_size: int, max_step_tokens: int
) -> int:
    """Most blocks of all groups together that a sequence of `num_tokens` holds at a time."""
    return sum(group.max_held_blocks(num_tokens, block_size, max_step_tokens) for group in groups)


def num_blocks_to_fit(
    groups: Sequence[KvCacheGroupSpec],
    num_hit_blocks: int,
    num_new_blocks: int,
    num_tokens: int,
    block_size: int,
    max_step_tokens: int,
) -> int:
    """Blocks that a sequence needs beside its hit, now or until it has `num_tokens`.

    Args:
        groups: Each gets as many new blocks as the others.
        num_hit_blocks: Full blocks in front that are there already.
        num_new_blocks: To be taken now, of each group.
        num_tokens: The sequence's length in the end, at least that of these blocks.
        block_size: In tokens.
        max_step_tokens: Most tokens between what is surely computed and the end of a step.
    """
    num_after_hit = -(-num_tokens // block_size) - num_hit_blocks
    num_to_fit = 0
    for group in groups:
        if not group.sliding_window:
            num_to_fit += num_after_hit
            continue
        most = group.max_held_blocks(num_tokens, block_size, max_step_tokens)
        most_new = most - group.num_hit_blocks(num_hit_blocks, block_size)
        num_to_fit += max(num_new_blocks, min(most_new, num_after_hit))
    return num_to_fit
