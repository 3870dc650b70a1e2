"""The seam to whoever follows the prefix cache: which hashes come into it and go from it.

It knows no block; `kv_events` is what listens in a service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class KvEventSink(Protocol):
    """Whoever wants to know which hashes are findable; a hash counts, not its blocks.

    With several KV cache groups it hears of one of them: the first full one, else the first.
    """

    def blocks_stored(
        self, parent_hash: bytes | None, hashes: Sequence[bytes], token_ids: Sequence[int]
    ) -> None:
        """Hashes in a row became findable; `token_ids` are those of all their blocks."""

    def block_removed(self, block_hash: bytes) -> None:
        """A hash is not findable any more."""

    def all_cleared(self) -> None:
        """No hash is."""

    def flush(self) -> None:
        """What came since the last time belongs together."""


def tell_stored(
    events: KvEventSink,
    hashes: Sequence[bytes],
    token_ids: Sequence[int],
    indices: Sequence[int],
    block_size: int,
) -> None:
    """Tell of blocks of a request that became findable, a run of neighbours at a time.

    Args:
        events: Whom.
        hashes: Of the request's full blocks.
        token_ids: All of the request.
        indices: Of those blocks among its full ones, rising, at least one.
        block_size: In tokens.
    """
    start = end = indices[0]
    for index in (*indices, -1):
        if index != end:
            parent = hashes[start - 1] if start else None
            run = token_ids[start * block_size : end * block_size]
            events.blocks_stored(parent, hashes[start:end], run)
            start = index
        end = index + 1
