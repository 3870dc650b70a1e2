"""Block tables: which blocks hold a request's tokens, and what it can share.

It owns the block tables of each request, one a group of layers, and decides hits, allocation and
freeing over all groups together; `block_pool` carries them out, `prefix_hit` searches and
`kv_cache_groups` knows what a window needs. It does not know queues, budgets or the step. Called by
`scheduler` and `speculation` alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.block_lives import BlockLives
from scheduler_svc.block_pool import BlockPool
from scheduler_svc.block_tables import BlockTables, check_tables, tables_of_hit
from scheduler_svc.kv_cache_groups import ONE_FULL_GROUP, KvCacheGroups, num_blocks_to_fit
from scheduler_svc.kv_event_sink import KvEventSink, tell_stored
from scheduler_svc.prefix_cache_stats import PrefixCacheStats
from scheduler_svc.prefix_hit import NO_HIT, PrefixHit, find_prefix_hit
from scheduler_svc.request import Request


class KVCacheManager:
    """Block tables of all running requests over one pool.

    Invariants: a request has tables from its admission until it is preempted or finished, and the
    pool's reference counts are the number of tables that a block is in. The tables of a request are
    of one length, so every group gets as many new blocks as the others.

    Block ids go out flat: those of the first group, then as many of the second, and so on.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        groups: KvCacheGroups = ONE_FULL_GROUP,
        max_step_tokens: int = 1,
        enable_caching: bool = True,
        events: KvEventSink | None = None,
        lives: BlockLives | None = None,
    ) -> None:
        """Make a manager of no tables.

        Args:
            num_blocks: Of the pool, the null block included.
            block_size: In tokens, of every group.
            groups: At least one.
            max_step_tokens: Most tokens of a request between what is surely computed and the end
                of a step; bounds what a reservation counts for a window.
            enable_caching: Whether requests share blocks.
            events: Hears of the first full group, else of the first.
            lives: Follows blocks, if anybody does.
        """
        self.block_size = block_size
        self.stats = PrefixCacheStats()
        self._groups = groups
        self._sliding = [(i, group) for i, group in enumerate(groups) if group.sliding_window]
        self._max_step_tokens = max_step_tokens
        self._enable_caching = enable_caching
        self._events, self._lives = events, lives
        full = (i for i, group in enumerate(groups) if not group.sliding_window)
        self._event_group_id = next(full, 0)
        self._pool = BlockPool(
            num_blocks,
            num_groups=len(groups),
            event_group_id=self._event_group_id,
            enable_caching=enable_caching,
            events=events,
            lives=lives,
        )
        self._tables: dict[str, BlockTables] = {}

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
        """Requests that have block tables."""
        return len(self._tables)

    def block_ids(self, request: Request) -> list[int]:
        """The request's block tables, one after another; 0 where a window has moved on."""
        return self._tables[request.request_id].block_ids()

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest cached beginning of a request; takes nothing.

        At least the last token is left to compute, because its logits are needed: a prompt that is
        cached to its end recomputes its last block.
        """
        if not self._enable_caching or not request.reads_prefix_cache:
            return NO_HIT
        hashes = request.block_hashes[: (request.num_tokens - 1) // self.block_size]
        return find_prefix_hit(self._pool, self._groups, hashes, self.block_size)

    def allocate_slots(self, request: Request, num_new_tokens: int) -> Sequence[int] | None:
        """Make room for the next tokens of a running request.

            | out of window | computed | new |      all in the tables afterwards but the first
                                       ^     ^ end
                                       `num_computed_tokens`

        Returns:
            Ids of the blocks added to the tables, or None, with nothing added, if too few are free.
        """
        end = request.num_computed_tokens + num_new_tokens
        if end < request.num_quiet_tokens:
            return ()
        tables = self._tables[request.request_id]
        if self._sliding:
            self._free_out_of_window(request, tables)
        num_new_blocks = -(-end // self.block_size) - len(tables.blocks[0])
        new_block_ids: Sequence[int] = ()
        if num_new_blocks > 0:
            num_needed = num_new_blocks * len(tables.blocks)
            if num_needed > self._pool.num_free_blocks:
                return None
            new_blocks = self._pool.get_new_blocks(num_needed)
            tables.append(new_blocks, num_new_blocks)
            new_block_ids = [block.block_id for block in new_blocks]
        self._cache_full_blocks(request, tables, end)
        is_cached = tables.num_cached_blocks >= len(tables.blocks[0]) - 1
        if not self._sliding and (is_cached or not self._enable_caching):
            # Only the last block is not full: until it is, decoding changes nothing here.
            request.note_quiet(len(tables.blocks[0]) * self.block_size)
        return new_block_ids

    def admit(
        self,
        request: Request,
        hit: PrefixHit,
        num_new_tokens: int,
        *,
        num_reserved_tokens: int = 0,
        num_spare_blocks: int = 0,
    ) -> list[int] | None:
        """Give a waiting request its block tables, from a hit that nothing has happened since.

            | hit | new | reserved: must fit now, is not taken |

        Args:
            request: Has no tables yet and no computed tokens.
            hit: From `get_computed_blocks`.
            num_new_tokens: To compute in this step, after the hit.
            num_reserved_tokens: Of the request from its start; blocks for them must be free, as
                many as it holds at a time while it is computed that far.
            num_spare_blocks: Blocks that must stay free besides.

        Returns:
            The whole tables' block ids, or None, with nothing changed, if too few are free.
        """
        tables = tables_of_hit(hit, self._groups, self.block_size)
        end = hit.num_tokens + num_new_tokens
        num_hit_blocks = tables.num_cached_blocks
        num_new_blocks = -(-end // self.block_size) - num_hit_blocks
        num_to_fit = num_blocks_to_fit(
            self._groups,
            num_hit_blocks,
            num_new_blocks,
            max(end, num_reserved_tokens),
            self.block_size,
            self._max_step_tokens,
        )
        hit_blocks = tables.held_blocks()
        # A hit that nobody holds leaves the free queue too.
        num_free_hits = sum(block.ref_cnt == 0 for block in hit_blocks)
        if num_to_fit + num_free_hits + num_spare_blocks > self._pool.num_free_blocks:
            return None
        # Touched first, so that the new blocks can't be the hit's own.
        self._pool.touch(hit_blocks)
        new_blocks = self._pool.get_new_blocks(num_new_blocks * len(self._groups))
        tables.append(new_blocks, num_new_blocks)
        self._tables[request.request_id] = tables
        self._cache_full_blocks(request, tables, end)
        if self._enable_caching and request.reads_prefix_cache:
            self.stats.record(
                num_queries=request.num_tokens,
                num_hits=hit.num_tokens,
                was_preempted=request.num_preemptions > 0,
            )
        return tables.block_ids()

    def free(self, request: Request) -> None:
        """Give the request's blocks back; its last ones are evicted first. Idempotent."""
        request.num_quiet_tokens = 0
        tables = self._tables.pop(request.request_id, None)
        if tables is not None:
            self._pool.free_blocks(tables.in_eviction_order())

    def reset_prefix_cache(self) -> bool:
        """Forget what is cached; False, and nothing is done, while a request holds a block."""
        reset = self._pool.reset_prefix_cache()
        self.flush_events()
        return reset

    def begin_step(self, step: int, now_s: float = 0.0) -> None:
        """Note which step the next calls plan, and when."""
        self._pool.step = step
        if self._lives is not None:
            self._lives.now_s = now_s

    def flush_events(self) -> None:
        """Let go of the events so far: they are those of a step, or of a change between two."""
        if self._events is not None:
            self._events.flush()

    def cached_hashes(self) -> list[bytes]:
        """The hashes that a follower of all events so far knows; lets go of the latest ones."""
        self.flush_events()
        return self._pool.cached_hashes()

    def uncache_since(self, request: Request, step: int) -> None:
        """Make unfindable what a request cached in this step or later: nobody may read it.

        The request, if it has blocks, must lose them next: nothing would cache them again. If it
        has none any more, all that was cached since then is forgotten, which walks the pool. So it
        is if windows have moved on since: they left blocks behind that are in no table.
        """
        tables = self._tables.get(request.request_id)
        if tables is None or (self._sliding and step < self._pool.step):
            self._pool.uncache_since(step, self._pool.blocks)
        else:
            self._pool.uncache_since(step, tables.held_blocks())

    def uncache_all_since(self, step: int) -> set[str]:
        """Make unfindable all that was cached in this step or later; walks the pool.

        Returns:
            Ids of the requests that hold such a block: what they would read is in doubt. One whose
            window has left such a block was itself in that step or a later one.
        """
        uncached = {b.block_id for b in self._pool.uncache_since(step, self._pool.blocks)}
        self.flush_events()
        return {
            request_id
            for request_id, tables in self._tables.items()
            if not uncached.isdisjoint(block.block_id for block in tables.held_blocks())
        }

    def check_integrity(self) -> None:
        """Verify the invariants of tables and pool; walks everything.

        Raises:
            RuntimeError: Names the first that does not hold.
        """
        self._pool.check_integrity()
        check_tables(self._tables.values(), self._pool, self._groups, self.block_size)

    def _free_out_of_window(self, request: Request, tables: BlockTables) -> None:
        """Put the null block where no token that is still to be computed looks.

        Only known tokens count: drafts may be wrong, and `num_computed_tokens` falls by them, but
        never below the last known token. A step under way may still read a block that is freed here
        and given to another request: whoever gets it writes in a step that is planned now or later,
        and the worker runs steps in order.
        """
        num_sure_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
        for group_id, group in self._sliding:
            num_skipped = group.num_skipped_blocks(num_sure_tokens, self.block_size)
            if num_skipped > tables.num_skipped[group_id]:
                left = tables.skip(group_id, num_skipped, self._pool.null_block)
                # As when a request ends: of the blocks left together the last is evicted first.
                self._pool.free_blocks(reversed(left))

    def _cache_full_blocks(self, request: Request, tables: BlockTables, end: int) -> None:
        # Cached before they are computed: whoever hits them in this step runs after or beside us.
        # Tokens that are not known yet (drafts) have no hash and are never cached.
        if not self._enable_caching:
            return
        num_full_blocks = min(end, len(request.all_token_ids)) // self.block_size
        if num_full_blocks <= tables.num_cached_blocks:
            return
        for group_id, blocks in enumerate(tables.blocks):
            # Several tokens may have become known at once, and a window moved past a block of them.
            start = max(tables.num_cached_blocks, tables.num_skipped[group_id])
            first_of_hash = self._pool.cache_full_blocks(
                blocks, request.block_hashes, start, num_full_blocks, group_id
            )
            if first_of_hash and self._events is not None and group_id == self._event_group_id:
                tell_stored(
                    self._events,
                    request.block_hashes,
                    request.all_token_ids,
                    first_of_hash,
                    self.block_size,
                )
        tables.num_cached_blocks = num_full_blocks
