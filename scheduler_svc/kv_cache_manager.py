"""Block tables: which blocks hold a request's tokens, and what it can share.

It owns one block table a request and decides hits, allocation and freeing; `block_pool` carries
them out. It does not know queues, budgets or the step. Called by `scheduler` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_svc.block_pool import BlockPool, KVCacheBlock, KvEventSink
from scheduler_svc.request import Request


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Cached blocks that hold the beginning of a request."""

    blocks: Sequence[KVCacheBlock] = ()
    num_tokens: int = 0


NO_HIT = PrefixHit()


@dataclass(slots=True)
class PrefixCacheStats:
    """Tokens looked up and found, at admissions only; grows forever.

    Lookups of preempted requests are apart: they find what the request itself wrote.
    """

    num_queries: int = 0
    num_hits: int = 0
    num_preempted_queries: int = 0
    num_preempted_hits: int = 0

    def record(self, *, num_queries: int, num_hits: int, was_preempted: bool) -> None:
        if was_preempted:
            self.num_preempted_queries += num_queries
            self.num_preempted_hits += num_hits
        else:
            self.num_queries += num_queries
            self.num_hits += num_hits


@dataclass(slots=True)
class _BlockTable:
    blocks: list[KVCacheBlock] = field(default_factory=list)
    num_cached_blocks: int = 0
    """Leading blocks that are full and findable by hash."""


class KVCacheManager:
    """Block tables of all running requests over one pool.

    Invariant: a request has a table from its admission until it is preempted or finished, and the
    pool's reference counts are the number of tables that a block is in.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_caching: bool = True,
        events: KvEventSink | None = None,
    ) -> None:
        self.block_size = block_size
        self.stats = PrefixCacheStats()
        self._enable_caching = enable_caching
        self._events = events
        self._pool = BlockPool(num_blocks, enable_caching=enable_caching, events=events)
        self._tables: dict[str, _BlockTable] = {}

    @property
    def usage(self) -> float:
        """Share of usable blocks that requests hold, 0 to 1."""
        return self._pool.usage

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free_blocks

    @property
    def num_blocks(self) -> int:
        """All blocks, the null block included."""
        return len(self._pool.blocks)

    @property
    def num_tables(self) -> int:
        return len(self._tables)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def block_ids(self, request: Request) -> list[int]:
        """The request's block table."""
        return [block.block_id for block in self._tables[request.request_id].blocks]

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest cached beginning of a request; takes nothing.

        At least the last token is left to compute, because its logits are needed: a prompt that is
        cached to its end recomputes its last block.
        """
        if not self._enable_caching or not request.reads_prefix_cache:
            return NO_HIT
        blocks = []
        get_cached_block = self._pool.get_cached_block
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block = get_cached_block(block_hash)
            if block is None:
                break
            blocks.append(block)
        return PrefixHit(blocks, len(blocks) * self.block_size)

    def allocate_slots(self, request: Request, num_new_tokens: int) -> Sequence[int] | None:
        """Make room for the next tokens of a running request.

            | computed | new |            all in the table afterwards
                       ^     ^ end
                       `num_computed_tokens`

        Returns:
            Ids of the blocks added to the table, or None, with nothing changed, if too few are
            free.
        """
        table = self._tables[request.request_id]
        end = request.num_computed_tokens + num_new_tokens
        num_needed = -(-end // self.block_size) - len(table.blocks)
        if num_needed > 0:
            if num_needed > self._pool.num_free_blocks:
                return None
            new_blocks = self._pool.get_new_blocks(num_needed)
            table.blocks += new_blocks
        self._cache_full_blocks(request, table, end)
        return [block.block_id for block in new_blocks] if num_needed > 0 else ()

    def admit(
        self,
        request: Request,
        hit: PrefixHit,
        num_new_tokens: int,
        *,
        num_reserved_tokens: int = 0,
        num_spare_blocks: int = 0,
    ) -> list[int] | None:
        """Give a waiting request its block table, from a hit that nothing has happened since.

            | hit | new | reserved: must fit now, is not taken |

        Args:
            request: Has no table yet and no computed tokens.
            hit: From `get_computed_blocks`.
            num_new_tokens: To compute in this step, after the hit.
            num_reserved_tokens: Of the request from its start; blocks for them must be free.
            num_spare_blocks: Blocks that must stay free besides.

        Returns:
            The whole table's block ids, or None, with nothing changed, if too few are free.
        """
        end = hit.num_tokens + num_new_tokens
        num_new_blocks = self.num_blocks_for(end) - len(hit.blocks)
        num_to_fit = self.num_blocks_for(max(end, num_reserved_tokens)) - len(hit.blocks)
        # A hit that nobody holds leaves the free queue too.
        num_free_hits = sum(block.ref_cnt == 0 for block in hit.blocks)
        if num_to_fit + num_free_hits + num_spare_blocks > self._pool.num_free_blocks:
            return None
        # Touched first, so that the new blocks can't be the hit's own.
        self._pool.touch(hit.blocks)
        blocks = [*hit.blocks, *self._pool.get_new_blocks(num_new_blocks)]
        table = _BlockTable(blocks, num_cached_blocks=len(hit.blocks))
        self._tables[request.request_id] = table
        self._cache_full_blocks(request, table, end)
        if self._enable_caching and request.reads_prefix_cache:
            self.stats.record(
                num_queries=request.num_tokens,
                num_hits=hit.num_tokens,
                was_preempted=request.num_preemptions > 0,
            )
        return [block.block_id for block in blocks]

    def free(self, request: Request) -> None:
        """Give the request's blocks back; its last block is evicted first. Idempotent."""
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            self._pool.free_blocks(reversed(table.blocks))

    def reset_prefix_cache(self) -> bool:
        """Forget what is cached; False, and nothing is done, while a request holds a block."""
        reset = self._pool.reset_prefix_cache()
        self.flush_events()
        return reset

    def begin_step(self, step: int) -> None:
        """Note which step the next calls plan."""
        self._pool.step = step

    def flush_events(self) -> None:
        """Let go of the events so far: they are those of a step, or of a change between two."""
        if self._events is not None:
            self._events.flush()

    def uncache_since(self, request: Request, step: int) -> None:
        """Make unfindable what a request cached in this step or later: nobody may read it.

        The request, if it has blocks, must lose them next: nothing would cache them again. If it
        has none any more, all that was cached since then is forgotten, which walks the pool.
        """
        table = self._tables.get(request.request_id)
        self._pool.uncache_since(step, self._pool.blocks if table is None else table.blocks)

    def uncache_all_since(self, step: int) -> set[str]:
        """Make unfindable all that was cached in this step or later; walks the pool.

        Returns:
            Ids of the requests that hold such a block: what they would read is in doubt.
        """
        uncached = {b.block_id for b in self._pool.uncache_since(step, self._pool.blocks)}
        self.flush_events()
        return {
            request_id
            for request_id, table in self._tables.items()
            if not uncached.isdisjoint(block.block_id for block in table.blocks)
        }

    def check_integrity(self) -> None:
        """Verify the invariants of tables and pool; walks everything.

        Raises:
            RuntimeError: Names the first that does not hold.
        """
        self._pool.check_integrity()
        num_references = Counter(
            block.block_id for table in self._tables.values() for block in table.blocks
        )
        for block in self._pool.blocks[1:]:
            if block.ref_cnt != num_references[block.block_id]:
                raise RuntimeError(f"{block} is in {num_references[block.block_id]} tables")
        if self._pool.null_block.block_id in num_references:
            raise RuntimeError("the null block is in a block table")

    def _cache_full_blocks(self, request: Request, table: _BlockTable, end: int) -> None:
        # Cached before they are computed: whoever hits them in this step runs after or beside us.
        # Tokens that are not known yet (drafts) have no hash and are never cached.
        if not self._enable_caching:
            return
        num_full_blocks = min(end, len(request.all_token_ids)) // self.block_size
        if num_full_blocks > table.num_cached_blocks:
            first_of_hash = self._pool.cache_full_blocks(
                table.blocks, request.block_hashes, table.num_cached_blocks, num_full_blocks
            )
            table.num_cached_blocks = num_full_blocks
            if first_of_hash and self._events is not None:
                self._emit_stored(self._events, request, first_of_hash)

    def _emit_stored(self, events: KvEventSink, request: Request, indices: Sequence[int]) -> None:
        """Tell of blocks that became findable, a run of neighbours at a time."""
        hashes, size = request.block_hashes, self.block_size
        start = end = indices[0]
        for index in (*indices, -1):
            if index != end:
                parent = hashes[start - 1] if start else None
                token_ids = request.all_token_ids[start * size : end * size]
                events.blocks_stored(parent, hashes[start:end], token_ids)
                start = index
            end = index + 1
