"""KV events: which block hashes the prefix cache holds, told to whoever follows along.

`KvEventLog` takes events from the block pool (it is its `KvEventSink`), numbers them in batches and
keeps the last ones for replay; a subscriber is no more than the number that it wants next, so a
slow one costs nothing, and is told where to go on once what it wants is gone. It knows no wire;
`servicer` makes messages of the batches. All on one event loop.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from pagewire.kit.errors import FailedPreconditionError, QueueFullError
from scheduler_svc.bounds import MAX_GATEWAYS

MAX_SUBSCRIBERS = MAX_GATEWAYS


@dataclass(slots=True)
class BlocksStored:
    """Hashes in a row that became findable. Not frozen only because that takes longer to make."""

    parent_hash: bytes | None
    """Of the block before; None at the beginning of a request."""
    hashes: Sequence[bytes]
    token_ids: Sequence[int]
    """Of all these blocks, one after another."""


@dataclass(slots=True)
class KvEventBatch:
    """What one step changed; to be applied in the order of the fields."""

    sequence: int = 0
    all_cleared: bool = False
    removed_hashes: list[bytes] = field(default_factory=list)
    stored: list[BlocksStored] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.all_cleared or self.removed_hashes or self.stored)


class KvEventLog:
    """The last batches, and those who follow them.

    Invariant: the batches in the buffer have consecutive numbers; the first ever has number 1.
    """

    def __init__(self, num_batches: int) -> None:
        if num_batches < 1:
            raise ValueError(f"num_batches={num_batches}: must be at least 1")
        self._batches: deque[KvEventBatch] = deque(maxlen=num_batches)
        self._next_sequence = 1
        self._pending = KvEventBatch()
        self._pending_stored: set[bytes] = set()
        self._wakes: set[asyncio.Event] = set()

    @property
    def next_sequence(self) -> int:
        """Number of the next batch."""
        return self._next_sequence

    @property
    def first_sequence(self) -> int:
        """Number of the oldest batch that can still be replayed."""
        return self._next_sequence - len(self._batches)

    # KvEventSink.

    def blocks_stored(
        self, parent_hash: bytes | None, hashes: Sequence[bytes], token_ids: Sequence[int]
    ) -> None:
        self._pending.stored.append(BlocksStored(parent_hash, hashes, array("I", token_ids)))
        self._pending_stored.update(hashes)

    def block_removed(self, block_hash: bytes) -> None:
        if block_hash in self._pending_stored:
            # Stored and removed in one step: the other way round in one batch would keep it.
            self.flush()
        self._pending.removed_hashes.append(block_hash)

    def all_cleared(self) -> None:
        self._pending = KvEventBatch(all_cleared=True)
        self._pending_stored.clear()

    def flush(self) -> None:
        batch = self._pending
        if batch.is_empty:
            return
        batch.sequence = self._next_sequence
        self._next_sequence += 1
        self._batches.append(batch)
        self._pending = KvEventBatch()
        self._pending_stored.clear()
        for wake in self._wakes:
            wake.set()

    # For subscribers.

    @asynccontextmanager
    async def follow(
        self, start_sequence: int, idle_s: float
    ) -> AsyncIterator[AsyncIterator[KvEventBatch | None]]:
        """Follow the batches from a number on: an iterator without an end.

        Args:
            start_sequence: The first batch wanted; 0 for the next that comes.
            idle_s: After so long without a batch, None says that all is well.

        Raises:
            FailedPreconditionError: That batch is not here; from the iterator: the subscriber was
                so slow that the next one is gone. The metadata has a number to `resume_from`.
            QueueFullError: Too many follow.
        """
        if len(self._wakes) >= MAX_SUBSCRIBERS:
            raise QueueFullError(
                f"{MAX_SUBSCRIBERS} subscribers follow the KV events", reason="TOO_MANY_SUBSCRIBERS"
            )
        sequence = start_sequence or self._next_sequence
        self._check(sequence)
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            async with aclosing(self._follow(sequence, wake, idle_s)) as batches:
                yield batches
        finally:
            self._wakes.discard(wake)

    async def _follow(
        self, sequence: int, wake: asyncio.Event, idle_s: float
    ) -> AsyncGenerator[KvEventBatch | None]:
        while True:
            while sequence < self._next_sequence:
                self._check(sequence)
                yield self._batches[sequence - self.first_sequence]
                sequence += 1
            wake.clear()
            try:
                async with asyncio.timeout(idle_s):
                    await wake.wait()
            except TimeoutError:
                yield None

    def _check(self, sequence: int) -> None:
        if self.first_sequence <= sequence <= self._next_sequence:
            return
        # Not the oldest: it may be gone before the subscriber is back.
        resume_from = self._next_sequence - len(self._batches) // 2
        raise FailedPreconditionError(
            f"KV events from {sequence} on are not here: the oldest is {self.first_sequence}, the"
            f" next is {self._next_sequence}; forget what you know of this cache and resume from"
            f" {resume_from}",
            reason="KV_EVENTS_LOST",
            metadata={"resume_from": str(resume_from)},
        )
