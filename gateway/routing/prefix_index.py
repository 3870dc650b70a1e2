"""Which block hashes one replica has in its prefix cache, as its KV events tell.

A mirror of what the replica holds, no more: it never claims a hash that the replica has not told,
and it is bounded. It knows no streams; `followers` feeds it, `prefix_match` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.streams import StreamLostError

MAX_HASHES = 1 << 20
"""About 100 bytes each: 100 MB of a gateway, 16.8 million tokens in blocks of 16."""


class PrefixIndex:
    """The hashes of one replica.

    It answers only while it `is_current`: not before the snapshot is complete, not while nobody
    follows the events. Hashes beyond `max_hashes` are not kept, so that long prefixes seem shorter
    than they are: a worse choice, never a wrong one.
    """

    def __init__(self, block_size: int = 0, max_hashes: int = MAX_HASHES) -> None:
        """Begin with nothing known.

        Args:
            block_size: Tokens in a block.
            max_hashes: Most that are kept.
        """
        self.block_size = block_size
        self.is_current = False
        self.is_full = False
        """Whether hashes were left out since the last snapshot or clearing."""
        self.next_sequence = 0
        """Number of the batch that comes next; 0: none is known, a snapshot is needed."""
        self._max_hashes = max_hashes
        self._hashes: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._hashes

    def void(self) -> None:
        """Forget everything: a snapshot is needed."""
        self._clear()
        self.is_current = False
        self.next_sequence = 0

    def pause(self) -> None:
        """Nobody follows just now; what is known counts again if no batch is missed."""
        self.is_current = False

    def resume(self) -> None:
        """The batches from `next_sequence` on are followed again."""
        self.is_current = self.next_sequence > 0

    def take_snapshot(self, hashes: Iterable[bytes], through_sequence: int, is_last: bool) -> None:
        """Add a part of a snapshot; after the last one, the batch after it comes next."""
        self._store(hashes)
        if is_last:
            self.next_sequence = through_sequence + 1
            self.is_current = True

    def apply(
        self, sequence: int, all_cleared: bool, removed: Iterable[bytes], stored: Iterable[bytes]
    ) -> None:
        """Apply a batch, in the order of the arguments.

        Raises:
            StreamLostError: It is not the next one; all that was known is void.
        """
        if sequence != self.next_sequence:
            expected = self.next_sequence
            self.void()
            raise StreamLostError(f"KV events go on with {sequence} in place of {expected}")
        self.next_sequence += 1
        if all_cleared:
            self._clear()
        self._hashes.difference_update(removed)
        self._store(stored)

    def _clear(self) -> None:
        self._hashes.clear()
        self.is_full = False

    def _store(self, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            if len(self._hashes) >= self._max_hashes:
                self.is_full = True
                return
            self._hashes.add(block_hash)
