"""The pool: choice among replicas by prefix, failures, models; members that join and leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from gateway import engine_client
from gateway.engine_client import EngineSettings
from gateway.engine_pool import EnginePool, PoolSettings
from gateway.engine_stream import GatewayIdentity
from gateway.live_request import EngineRequest, LiveRequest
from gateway.output_collector import OutputCollector
from gateway.routing.circuit_breaker import FAILURES_TO_OPEN, FIRST_BACKOFF_S
from gateway.routing.replica import UNANSWERED_S, Replica
from gateway.routing.replica_load import LoadReport, ReplicaLoad
from pagewire.block_hash import hash_blocks
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import NotFoundError, PagewireError
from pagewire.kit.tasks import cancel_and_wait
from pagewire.sampling_params import SamplingParams
from pagewire.v1 import scheduler_pb2
from tests.fakes.fake_scheduler import MODEL, FakeScheduler
from tests.fakes.fake_tokenizer import FINGERPRINT
from tests.gateway.live import make_record

TIMEOUT_S = 20.0
NAME = "dns:///replicas:1"
INTERNAL, UNAVAILABLE, EXHAUSTED = 13, 14, 8


class Pool:
    """A pool at work; `resolve` answers with `members`."""

    def __init__(self, targets: Sequence[str], members: Sequence[str] = (), **settings: object):
        self.members = list(members)
        self.now_s = 0.0
        self.changed = asyncio.Event()
        engine = EngineSettings(GatewayIdentity("g", 1), 5.0, 60.0, use_model_defaults=False)
        settings_ = PoolSettings(
            resolve=self._resolve,
            resolve_interval_s=0.01,
            clock=lambda: self.now_s,
            **settings,  # type: ignore[arg-type]
        )
        self.pool = EnginePool(targets, engine, Mock(), self.changed.set, settings_)

    async def _resolve(self, name: str) -> list[str]:
        assert name == NAME
        return self.members

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def replica(self, scheduler: FakeScheduler) -> Replica:
        return next(each for each in self.pool.replicas if each.target == scheduler.target)

    def send(
        self, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 400, deadline_ns: int = 0
    ) -> LiveRequest:
        """Send a request as the request service does."""
        request = EngineRequest("r", prompt, SamplingParams(max_tokens=max_tokens), 1, deadline_ns)
        live = LiveRequest(request, 0, frozenset(), OutputCollector(10**6), make_record())
        engine, info = self.pool.choose("", FINGERPRINT)
        self.pool.dispatch([live], engine, info)
        return live

    async def ask(self, prompt: Sequence[int] = (1, 2, 3)) -> LiveRequest | PagewireError:
        live = self.send(prompt)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await live.admission
        except PagewireError as error:
            return error
        return live


@asynccontextmanager
async def running(pool: Pool) -> AsyncIterator[Pool]:
    task = asyncio.create_task(pool.pool.run())
    try:
        yield pool
    finally:
        await pool.pool.close()
        await cancel_and_wait(task)


@asynccontextmanager
async def fakes(number: int, **infos: Sequence[str]) -> AsyncIterator[list[FakeScheduler]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeScheduler(**infos)) for _ in range(number)]


@asynccontextmanager
async def pool_of(schedulers: Sequence[FakeScheduler], **settings: object) -> AsyncIterator[Pool]:
    async with running(Pool([each.target for each in schedulers], **settings)) as pool:
        await pool.until(lambda: len(pool.pool.ready) == len(schedulers))
        yield pool


def owner(pool: Pool, live: LiveRequest) -> str:
    return next(each.target for each in pool.pool.replicas if each.client is live.owner)


def know(replica: Replica, prompt: Sequence[int], block_size: int = 4) -> None:
    """Let the gateway know that the replica has a prompt cached."""
    replica.index.block_size = block_size
    replica.index.take_snapshot(hash_blocks(None, prompt, block_size), 0, True)


async def test_a_prompt_goes_where_its_prefix_is() -> None:
    prompt = list(range(2000))
    async with fakes(3) as schedulers, pool_of(schedulers) as pool:
        know(pool.replica(schedulers[1]), prompt)
        for _ in range(3):
            assert owner(pool, pool.send([*prompt, 7])) == schedulers[1].target
        assert owner(pool, pool.send([5, *prompt])) != schedulers[1].target
        counters = pool.pool.router.counters
        assert (counters.num_matched_tokens, counters.num_prompt_tokens) == (6000, 8004)


async def test_outputs_of_one_prompt_stay_together() -> None:
    async with fakes(2) as schedulers, pool_of(schedulers, routing_policy="round-robin") as pool:
        request = EngineRequest("r", [1, 2], SamplingParams(max_tokens=400), 1, 0)
        siblings = [
            LiveRequest(request, index, frozenset(), OutputCollector(10**6), make_record())
            for index in range(4)
        ]
        engine, info = pool.pool.choose("", FINGERPRINT)
        pool.pool.dispatch(siblings, engine, info)
        assert len({owner(pool, live) for live in siblings}) == 1


@pytest.mark.parametrize("policy", ["round-robin", "least-loaded", "prefix-aware"])
async def test_without_a_reason_all_take_turns(policy: str) -> None:
    async with fakes(3) as schedulers, pool_of(schedulers, routing_policy=policy) as pool:
        owners = [owner(pool, pool.send()) for _ in range(9)]
        assert {owners.count(each.target) for each in schedulers} == {3}


async def test_one_that_is_silent_about_its_load_is_no_idle_one() -> None:
    async with fakes(2) as schedulers, pool_of(schedulers) as pool:
        telling, silent = (pool.replica(each) for each in schedulers)
        # It has little to do, so it goes first until it has as much as the silent one may have.
        telling.load.take(LoadReport(3, 0, True), 0)
        owners = [owner(pool, pool.send()) for _ in range(4)]
        assert owners.count(silent.target) in (1, 2)
        assert silent.candidate(0, 9).num_requests == 9
        assert silent.candidate(0, 9, 700).num_tokens_waiting == 700


@pytest.mark.parametrize("code", [INTERNAL, UNAVAILABLE])
async def test_one_that_fails_again_and_again_is_left_alone(code: int) -> None:
    async with fakes(2) as schedulers, pool_of(schedulers, routing_policy="round-robin") as pool:
        broken, sound = schedulers
        broken.refusal = scheduler_pb2.RequestError(code=code, reason="BROKEN", message="no")
        for _ in range(2 * FAILURES_TO_OPEN):
            await pool.ask()
        assert len(broken.adds) == FAILURES_TO_OPEN
        assert not pool.replica(broken).breaker.is_closed
        for _ in range(4):
            assert isinstance(await pool.ask(), LiveRequest)
        assert len(sound.adds) == FAILURES_TO_OPEN + 4
        broken.refusal, pool.now_s = None, FIRST_BACKOFF_S
        assert isinstance(await pool.ask(), LiveRequest)
        assert isinstance(await pool.ask(), LiveRequest)
        assert len(broken.adds) == FAILURES_TO_OPEN + 1


async def test_refusals_of_the_request_open_nothing() -> None:
    async with fakes(1) as schedulers, pool_of(schedulers) as pool:
        schedulers[0].refusal = scheduler_pb2.RequestError(code=EXHAUSTED, reason="QUEUE_FULL")
        for _ in range(3 * FAILURES_TO_OPEN):
            await pool.ask()
        assert pool.replica(schedulers[0]).breaker.is_closed


END_FACTORS = {"its client left": 1.5, "its deadline came": 2.0, "a little early": 1.9995}


@pytest.mark.parametrize("end", END_FACTORS)
async def test_a_request_that_nobody_answered_is_a_failure_at_its_deadline_alone(end: str) -> None:
    async with fakes(1) as schedulers, pool_of(schedulers) as pool:
        breaker = pool.replica(schedulers[0]).breaker
        for _ in range(FAILURES_TO_OPEN):
            live = pool.send(deadline_ns=time.time_ns() + int(2 * UNANSWERED_S * 1e9))
            pool.now_s += UNANSWERED_S * END_FACTORS[end]
            live.admission.cancel()
            await asyncio.sleep(0)  # callbacks of a future are called a turn later
        assert breaker.is_closed is (end == "its client left")


async def test_a_client_without_patience_says_nothing_of_a_replica_either() -> None:
    async with fakes(1) as schedulers, pool_of(schedulers) as pool:
        for _ in range(FAILURES_TO_OPEN):
            pool.send(deadline_ns=time.time_ns() + 10**9).admission.cancel()
            pool.now_s += UNANSWERED_S / 2
            await asyncio.sleep(0)
        assert pool.replica(schedulers[0]).breaker.is_closed


async def test_new_requests_pass_by_one_that_is_paused_unless_all_are() -> None:
    async with fakes(2) as schedulers, pool_of(schedulers) as pool:
        paused, other = (pool.replica(each) for each in schedulers)
        paused.load.take(LoadReport(0, 0, False), 0)
        other.load.take(LoadReport(40, 4000, True), 0)
        for _ in range(3):
            assert owner(pool, pool.send()) == other.target
        other.load.take(LoadReport(40, 4000, False), 0)
        assert owner(pool, pool.send()) == paused.target


@pytest.mark.parametrize("is_gone", [False, True])
async def test_what_has_no_worker_moves_to_one_that_is_paused_only_without_its_engine(
    is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That the fakes do not tell their load is found out at some moment of the test.
    monkeypatch.setattr(ReplicaLoad, "lost", lambda load: None)
    async with fakes(2) as (own, paused), pool_of([own, paused]) as pool:
        pool.replica(paused).load.take(LoadReport(0, 0, False), 0)
        own.go_on.clear()
        live = pool.send()
        assert owner(pool, live) == own.target
        await own.until(lambda: own.adds)
        if is_gone:
            own.lose_streams()
            await paused.until(lambda: paused.adds)
        else:
            own.is_recovering = True
            await own.tell()
            await pool.until(lambda: pool.replica(own).client.is_recovering)
        assert owner(pool, live) == (paused if is_gone else own).target


async def test_when_all_have_failed_they_are_used_all_the_same() -> None:
    async with fakes(1) as schedulers, pool_of(schedulers) as pool:
        schedulers[0].refusal = scheduler_pb2.RequestError(code=INTERNAL, reason="BROKEN")
        for _ in range(FAILURES_TO_OPEN):
            await pool.ask()
        assert not pool.replica(schedulers[0]).breaker.is_closed
        schedulers[0].refusal = None
        assert isinstance(await pool.ask(), LiveRequest)
        assert pool.replica(schedulers[0]).breaker.is_closed


async def test_models_are_told_apart_and_all_are_listed() -> None:
    async with (
        FakeScheduler(models=("one", "both")) as one,
        FakeScheduler(models=("two", "both")) as two,
        pool_of([one, two]) as pool,
    ):
        assert set(pool.pool.models) == {"one", "two", "both"}
        for name, scheduler in (("one", one), ("two", two)):
            engine, info = pool.pool.choose(name, FINGERPRINT)
            assert (engine.target, name in info.served_model_names) == (scheduler.target, True)
        with pytest.raises(NotFoundError, match="`three` does not exist"):
            pool.pool.choose("three", FINGERPRINT)


async def test_replicas_of_other_limits_never_get_what_was_checked_against_these() -> None:
    async with FakeScheduler() as small, FakeScheduler() as large:
        large.info.max_model_len = 10 * small.info.max_model_len
        async with pool_of([small, large]) as pool:
            info = pool.replica(large).client.info
            assert info is not None
            for _ in range(4):
                request = EngineRequest("r", [1], SamplingParams(max_tokens=400), 1, 0)
                live = LiveRequest(request, 0, frozenset(), OutputCollector(10**6), make_record())
                pool.pool.dispatch([live], pool.replica(small).client, info)
                assert owner(pool, live) == large.target


async def test_limits_are_those_of_one_that_has_a_worker_where_there_is_one() -> None:
    async with FakeScheduler() as waiting, FakeScheduler() as able:
        able.info.max_model_len = 2 * able.info.max_model_len
        async with pool_of([waiting, able]) as pool:
            waiting.is_recovering = True
            await waiting.tell()
            await pool.until(lambda: pool.replica(waiting).client.is_recovering)
            live = [pool.send(), pool.send()]
            assert {owner(pool, each) for each in live} == {able.target}


async def test_one_process_with_two_addresses_has_one_stream() -> None:
    async with fakes(1) as (only,), running(Pool([NAME], [only.target])) as pool:
        only.info.epoch = 7
        await pool.until(lambda: pool.pool.ready)
        pool.members = [only.target, f"localhost:{only.target.rpartition(':')[2]}"]
        await pool.until(lambda: len(pool.pool.replicas) == 2)
        second = pool.pool.replicas[1].client
        await pool.until(lambda: second._recovery.is_waiting)  # it has tried, and tries again
        assert (len(pool.pool.ready), len(only.opens)) == (1, 1)
        pool.members = pool.members[1:]
        await pool.until(lambda: pool.pool.ready == [second])


async def test_replicas_join_and_leave_at_run_time() -> None:
    async with fakes(2) as (first, second), running(Pool([NAME], [first.target])) as pool:
        await pool.until(lambda: len(pool.pool.ready) == 1)
        pool.members = [first.target, second.target]
        await pool.until(lambda: len(pool.pool.ready) == 2)
        second.go_on.clear()
        live = [pool.send(max_tokens=3), pool.send(max_tokens=3)]
        assert {owner(pool, each) for each in live} == {first.target, second.target}
        await second.until(lambda: second.adds)
        pool.members = [first.target]
        await pool.until(lambda: len(pool.pool.ready) == 1)
        assert owner(pool, pool.send()) == first.target
        # What it has goes on; only then is it gone.
        assert len(pool.pool.replicas) == 2
        second.go_on.set()
        await pool.until(lambda: len(pool.pool.replicas) == 1)
        await second.until(lambda: second.num_finished == 1 and not second.num_open)
        assert second.num_closed_cleanly == 1


async def test_a_name_is_asked_of_the_systems_resolver() -> None:
    async with fakes(1) as (only,):
        port = only.target.rpartition(":")[2]
        engine = EngineSettings(GatewayIdentity("g", 1), 5.0, 60.0, use_model_defaults=False)
        ready = asyncio.Event()
        pool = EnginePool([f"dns:///localhost:{port}"], engine, Mock(), ready.set)
        task = asyncio.create_task(pool.run())
        async with asyncio.timeout(TIMEOUT_S):
            while not pool.ready:
                ready.clear()
                await ready.wait()
        assert [client.target for client in pool.ready] == [f"127.0.0.1:{port}"]
        await pool.close()
        await cancel_and_wait(task)


async def test_one_that_comes_back_while_it_leaves_stays() -> None:
    async with fakes(1) as (only,), running(Pool([NAME], [only.target])) as pool:
        await pool.until(lambda: pool.pool.ready)
        only.go_on.clear()
        pool.send()
        await only.until(lambda: only.adds)
        pool.members = []
        await pool.until(lambda: not pool.pool.ready)
        pool.members = [only.target]
        await pool.until(lambda: pool.pool.ready)
        assert (len(pool.pool.replicas), len(only.opens)) == (1, 1)


async def test_what_still_runs_when_the_time_to_leave_is_over_moves() -> None:
    async with fakes(2) as (first, second):
        pool = Pool([NAME], [first.target], leave_timeout_s=0.0)
        async with running(pool):
            await pool.until(lambda: pool.pool.ready)
            first.go_on.clear()
            live = pool.send(max_tokens=3)
            await first.until(lambda: first.adds)
            pool.members = [first.target, second.target]
            await pool.until(lambda: len(pool.pool.ready) == 2)
            pool.members = [second.target]
            await second.until(lambda: second.num_finished)
            await pool.until(lambda: len(pool.pool.replicas) == 1)
            assert owner(pool, live) == second.target


async def test_each_connection_is_tried_under_a_channel_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A channel shows the certificate that it was opened with, however old."""
    opened: list[str] = []

    def open_counted(target: str, **options: Any) -> Any:
        opened.append(target)
        return open_channel(target, **options)

    monkeypatch.setattr(engine_client, "open_channel", open_counted)
    async with fakes(1) as (only,), pool_of([only]) as pool:
        num_opened = len(opened)
        only.lose_streams()
        await pool.until(lambda: not pool.pool.ready)
        await pool.until(lambda: pool.pool.ready)
        assert opened[num_opened:] and set(opened) == {only.target}


async def test_another_thread_may_read_while_replicas_join() -> None:
    pool, replicas = Pool([]).pool, dict[str, Any]()

    class Joining:
        """One that is joined by another while it is read, as if a thread had its turn."""

        @property
        def client(self) -> Any:
            replicas[str(len(replicas))] = Joining()
            return SimpleNamespace(engine="0", info=None)

    replicas["0"] = Joining()
    pool._replicas = replicas
    assert pool.connected() == []


async def test_names_of_models_are_kept_while_nobody_serves_them() -> None:
    async with fakes(1) as schedulers, pool_of(schedulers) as pool:
        schedulers[0].lose_streams()
        await pool.until(lambda: not pool.pool.ready)
        assert list(pool.pool.models) == [MODEL]


@pytest.mark.parametrize(("number", "follows"), [(1, False), (2, True)])
async def test_what_is_cached_is_followed_only_where_there_is_a_choice(
    monkeypatch: pytest.MonkeyPatch, number: int, follows: bool
) -> None:
    followed: list[object] = []
    asked = asyncio.Event()

    async def follow(stub: object, index: object) -> None:
        followed.append(index)
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.routing.replica.follow_kv_events", follow)
    async with fakes(number) as schedulers:
        for each in schedulers:
            each.info.block_size = 16
        async with pool_of(schedulers) as pool:
            await pool.ask()
            if follows:
                await asked.wait()
            assert bool(followed) is follows
