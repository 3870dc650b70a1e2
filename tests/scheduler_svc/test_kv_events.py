"""KV events: a follower's view is the prefix cache's, whatever happens, or it is told otherwise."""

import random

import pytest

from pagewire.block_hash import hash_block
from pagewire.kit.errors import FailedPreconditionError, QueueFullError
from scheduler_svc.kv_events import MAX_SUBSCRIBERS, KvEventLog
from scheduler_svc.scheduler import Scheduler
from tests.scheduler_svc.factories import add, make_limits, step
from tests.scheduler_svc.grouped_model import FULL, sliding

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))
LONG_S = 60.0


def log_with(num_batches, buffer=100):
    log = KvEventLog(buffer)
    for number in range(num_batches):
        log.block_removed(bytes([number]) * 32)
        log.flush()
    return log


class View:
    """What a follower knows of a cache, by the rules of the wire."""

    def __init__(self):
        self.hashes = set()
        self.sequences = []

    def apply(self, batch):
        self.sequences.append(batch.sequence)
        if batch.all_cleared:
            self.hashes.clear()
        for block_hash in batch.removed_hashes:
            self.hashes.remove(block_hash)
        for stored in batch.stored:
            assert self.hashes.isdisjoint(stored.hashes)
            self.hashes.update(stored.hashes)


async def read(batches, number):
    return [await anext(batches) for _ in range(number)]


async def test_batches_count_up_from_one_and_empty_ones_are_none():
    log = KvEventLog(10)
    async with log.follow(0, LONG_S) as batches:
        log.block_removed(A)
        log.flush()
        log.flush()
        log.blocks_stored(None, [B], [1, 2])
        log.block_removed(C)
        log.flush()
        first, second = await read(batches, 2)
    assert (first.sequence, first.removed_hashes, first.stored) == (1, [A], [])
    assert (second.sequence, second.removed_hashes) == (2, [C])
    assert [list(stored.token_ids) for stored in second.stored] == [[1, 2]]


async def test_the_last_batches_are_replayed():
    log = log_with(5)
    async with log.follow(3, LONG_S) as batches:
        assert [batch.sequence for batch in await read(batches, 3)] == [3, 4, 5]


async def test_a_start_of_zero_means_the_next_batch():
    log = log_with(5)
    async with log.follow(0, LONG_S) as batches:
        log.all_cleared()
        log.flush()
        (batch,) = await read(batches, 1)
    assert (batch.sequence, batch.all_cleared) == (6, True)


@pytest.mark.parametrize("start", [1, 2, 7, 1000])
async def test_a_batch_that_is_not_there_is_refused_with_where_to_resume(start):
    log = log_with(5, buffer=3)
    with pytest.raises(FailedPreconditionError) as error:
        async with log.follow(start, LONG_S):
            pass
    assert error.value.reason == "KV_EVENTS_LOST"
    assert error.value.metadata == {"resume_from": "5"}


async def test_a_subscriber_that_falls_behind_the_buffer_is_told_where_to_resume():
    log = log_with(1, buffer=4)
    async with log.follow(1, LONG_S) as batches:
        await read(batches, 1)
        for _ in range(5):
            log.all_cleared()
            log.flush()
        with pytest.raises(FailedPreconditionError) as error:
            await anext(batches)
    assert error.value.metadata == {"resume_from": "5"}
    async with log.follow(5, LONG_S) as batches:
        assert [batch.sequence for batch in await read(batches, 2)] == [5, 6]


async def test_silence_is_told():
    async with KvEventLog(4).follow(0, idle_s=0.001) as batches:
        assert await anext(batches) is None


async def test_subscribers_are_bounded_and_leave_room_when_they_go():
    log = KvEventLog(4)
    followers = [log.follow(0, LONG_S) for _ in range(MAX_SUBSCRIBERS)]
    for follower in followers:
        await follower.__aenter__()
    with pytest.raises(QueueFullError):
        async with log.follow(0, LONG_S):
            pass
    for follower in followers:
        await follower.__aexit__(None, None, None)
    async with log.follow(0, LONG_S):
        pass


async def test_what_is_stored_and_removed_in_one_step_comes_in_that_order():
    log, view = KvEventLog(10), View()
    async with log.follow(0, LONG_S) as batches:
        log.blocks_stored(None, [A, B], [1, 2])
        log.block_removed(A)
        log.flush()
        for batch in await read(batches, 2):
            view.apply(batch)
    assert view.hashes == {B}


def follow_all(log, view, sequence):
    for batch in list(log._batches):
        if batch.sequence >= sequence:
            view.apply(batch)
    return log.next_sequence


def findable(scheduler):
    """Of the first full group, else of the first."""
    groups = scheduler.limits.kv_cache_groups
    full = [i for i, group in enumerate(groups) if not group.sliding_window]
    return set(scheduler.kv_cache._pool._cached[(full or [0])[0]])


@pytest.mark.parametrize("groups", [(FULL,), (sliding(5), FULL), (sliding(5), sliding(9))])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_followers_view_is_the_cache_over_random_lives(policy, groups):
    chance, log, view, sequence = random.Random(7), KvEventLog(10_000), View(), 1
    limits = make_limits(
        num_blocks=25 * len(groups), max_model_len=40, policy=policy, kv_cache_groups=groups
    )
    scheduler = Scheduler(limits, log)
    for number in range(1500):
        choice = chance.random()
        if choice < 0.3 and scheduler.num_waiting < 8:
            prompt = [chance.randrange(2) for _ in range(chance.randrange(1, 24))]
            priority = chance.randrange(3) if policy == "priority" else 0
            add(scheduler, prompt, max_tokens=chance.randrange(1, 12), priority=priority)
        elif choice < 0.9:
            step(scheduler, lambda request: chance.randrange(2))
        elif choice < 0.94:
            scheduler.reset_prefix_cache(reset_running_requests=chance.random() < 0.5)
        elif choice < 0.97:
            output = scheduler.schedule(1.0)
            scheduler.take_back_steps([output])
        elif number % 3 == 0:
            scheduler.forget_worker()
        sequence = follow_all(log, view, sequence)
        assert view.hashes == findable(scheduler) == set(scheduler.kv_cache.cached_hashes())
    assert view.sequences == list(range(1, log.next_sequence))
    assert scheduler.make_stats().num_preemptions > 0 or FULL not in groups


def test_a_follower_can_compute_the_hashes_from_tokens_and_parents():
    log = KvEventLog(100)
    scheduler = Scheduler(make_limits(max_num_batched_tokens=10), log)
    add(scheduler, 22, max_tokens=12)
    add(scheduler, 13, max_tokens=12)
    while scheduler.has_requests:
        step(scheduler)
    num_stored = 0
    for batch in log._batches:
        for stored in batch.stored:
            parent = stored.parent_hash
            assert len(stored.token_ids) == 4 * len(stored.hashes)
            for index, block_hash in enumerate(stored.hashes):
                parent = hash_block(parent, stored.token_ids[4 * index : 4 * index + 4])
                assert parent == block_hash
                num_stored += 1
    assert num_stored == 22 // 4 + 13 // 4 + 12 // 4 * 2 == len(findable(scheduler))


def test_a_beginning_that_is_cached_twice_is_told_once():
    log = KvEventLog(100)
    scheduler = Scheduler(make_limits(), log)
    # No lookup: the second request computes and caches the same blocks again.
    for _ in range(2):
        add(scheduler, range(100, 112), max_tokens=1, prompt_logprobs=0)
    step(scheduler)
    (batch,) = log._batches
    assert [len(stored.hashes) for stored in batch.stored] == [3]
