import asyncio
from contextlib import asynccontextmanager

import pytest

from pagewire.kit.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    PagewireError,
    ServiceUnavailableError,
)
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_info import engine_fingerprint
from scheduler_svc.engine_state import EngineState
from scheduler_svc.executor import WorkerUnavailableError
from scheduler_svc.pause import PauseMode
from scheduler_svc.stop import FinishReason, Stop
from tests.scheduler_svc.factories import EOS, make_core_request
from tests.scheduler_svc.fakes import FakeClient, FakeExecutor, make_config, make_facts
from tests.scheduler_svc.sim_model import expected_output

PROMPT = [1, 2, 3, 4, 5, 6]


async def no_sleep(delay_s):
    await asyncio.sleep(0)


class Engine:
    def __init__(self, config=None, executor=None):
        self.executor = executor or FakeExecutor()
        self.core = EngineCore(config or make_config(), self.executor, sleep=no_sleep)
        self.states = []
        self.core.on_state = self._on_state
        self._changed = asyncio.Event()
        self.client = FakeClient()
        self.client_id = self.core.attach(self.client)

    def _on_state(self, state):
        self.states.append(state)
        self._changed.set()

    async def wait_state(self, state, times=1):
        """Wait until the engine has come into a state so many times."""
        async with asyncio.timeout(10):
            while self.states.count(state) < times:
                self._changed.clear()
                await self._changed.wait()

    def add(self, prompt=PROMPT, **overrides):
        request = make_core_request(prompt, client_id=self.client_id, **overrides)
        self.core.add_request(request)
        return request.request_id


@asynccontextmanager
async def running(engine=None):
    engine = engine or Engine()
    task = asyncio.create_task(engine.core.run())
    try:
        await engine.wait_state(EngineState.READY)
        yield engine
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_a_request_gets_the_models_output():
    async with running() as engine:
        request_id = engine.add(max_tokens=6)
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 6, frozenset({EOS}))
    assert engine.client.finished[request_id].reason is FinishReason.LENGTH


async def test_all_outputs_of_a_step_for_one_client_come_together():
    async with running() as engine:
        ids = [engine.add(max_tokens=4) for _ in range(3)]
        await engine.client.wait_finished(*ids)
    assert engine.client.num_frames <= 5


async def test_the_worker_hears_of_the_last_end_though_nothing_runs():
    async with running() as engine:
        request_id = engine.add(max_tokens=1)
        await engine.client.wait_finished(request_id)
        await engine.executor.wait_steps(2)
    assert engine.executor.steps[-1].finished_req_ids == [request_id]
    assert not engine.executor.steps[-1].requests


async def test_requests_are_refused_before_the_first_worker_is_ready():
    engine = Engine()
    with pytest.raises(ServiceUnavailableError):
        engine.add()
    with pytest.raises(ServiceUnavailableError):
        engine.core.require_info()


async def test_an_abort_in_a_step_wins_over_completion():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=1)
        await engine.executor.in_step.wait()
        engine.core.finish_requests([request_id])
        assert engine.client.finished[request_id].reason is FinishReason.ABORT
        assert engine.core.make_stats().kv_cache_usage == 0
        engine.executor.go_on.set()
        other = engine.add(max_tokens=1)
        await engine.client.wait_finished(other)
    assert request_id not in engine.client.token_ids
    assert engine.client.finished[request_id].reason is FinishReason.ABORT


async def test_an_abort_can_count_as_a_stop():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add()
        engine.core.finish_requests([request_id], Stop(FinishReason.STOP))
    assert engine.client.finished[request_id].reason is FinishReason.STOP


async def test_a_detached_client_leaves_nothing_behind():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add()
        await engine.executor.in_step.wait()
        engine.core.detach(engine.client_id, [request_id])
        stats = engine.core.make_stats()
        assert (stats.num_requests_running, stats.kv_cache_usage) == (0, 0)
    assert engine.client.finished == {}


async def test_no_token_is_lost_with_a_worker():
    async with running() as engine:
        ids = [engine.add([*PROMPT, number], max_tokens=20, ignore_eos=True) for number in range(5)]
        for times, number in enumerate((2, 5, 9), start=2):
            await engine.client.wait_tokens(ids[0], number)
            engine.executor.lose()
            await engine.wait_state(EngineState.READY, times)
        await engine.client.wait_finished(*ids)
        assert engine.core.counters.num_workers_lost == 3
    for number, request_id in enumerate(ids):
        expected = expected_output([*PROMPT, number], 20)
        assert engine.client.token_ids[request_id] == expected


async def test_a_worker_lost_while_idle_is_claimed_again():
    async with running() as engine:
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)
        request_id = engine.add(max_tokens=2)
        await engine.client.wait_finished(request_id)
    assert engine.client.recovering[-2:] == [True, False]


async def test_requests_are_taken_while_the_worker_is_away():
    async with running() as engine:
        engine.executor.unavailable = [WorkerUnavailableError("away")] * 3
        engine.executor.lose()
        await engine.wait_state(EngineState.RECOVERING)
        request_id = engine.add(max_tokens=2)
        await engine.client.wait_finished(request_id)


async def test_claiming_goes_on_until_a_worker_is_there():
    engine = Engine()
    engine.executor.unavailable = [WorkerUnavailableError("not yet")] * 20
    async with running(engine):
        assert engine.executor.num_initialized == 1


async def test_a_worker_with_another_model_is_not_taken():
    async with running() as engine:
        engine.executor.facts = make_facts(weights_digest="other")
        engine.executor.lose()
        await engine.wait_state(EngineState.RECOVERING)
        await engine.executor.wait_initialized(4)
        assert engine.core.state is EngineState.RECOVERING
        engine.executor.facts = make_facts()
        await engine.wait_state(EngineState.READY, times=2)


async def test_a_refusal_by_the_first_worker_ends_the_engine():
    engine = Engine()
    engine.executor.unavailable = [InvalidRequestError("no such model")]
    with pytest.raises(InvalidRequestError):
        await engine.core.run()


async def test_a_cache_too_small_ends_the_engine():
    engine = Engine(make_config(num_gpu_blocks_override=2))
    with pytest.raises(FailedPreconditionError, match="max seq len"):
        await engine.core.run()


async def test_a_failed_first_allocation_ends_the_engine():
    engine = Engine()
    engine.executor.allocation_error = FailedPreconditionError("out of memory")
    with pytest.raises(FailedPreconditionError, match="out of memory"):
        await engine.core.run()


async def test_a_refusal_after_the_first_worker_does_not_end_the_engine():
    async with running() as engine:
        engine.executor.unavailable = [InvalidRequestError("odd")]
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)


async def test_a_failed_step_is_computed_again_on_the_same_worker():
    async with running() as engine:
        engine.executor.num_failing_steps = 2
        request_id = engine.add(max_tokens=4, ignore_eos=True)
        await engine.client.wait_finished(request_id)
        assert engine.core.counters.num_workers_lost == 0
    assert engine.executor.num_initialized == 1
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 4)


async def test_steps_that_fail_in_the_middle_change_no_token():
    async with running() as engine:
        ids = [engine.add([*PROMPT, number], max_tokens=20, ignore_eos=True) for number in range(5)]
        for number in (2, 5, 9):
            await engine.client.wait_tokens(ids[0], number)
            engine.executor.num_failing_steps = 1
        await engine.client.wait_finished(*ids)
    assert engine.executor.num_failing_steps == 0
    for number, request_id in enumerate(ids):
        assert engine.client.token_ids[request_id] == expected_output([*PROMPT, number], 20)


async def test_a_worker_lost_behind_a_failed_step_is_claimed_again():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=6, ignore_eos=True)
        await engine.executor.wait_steps(2)
        engine.executor.num_failing_steps = 1
        engine.executor.on_failure = engine.executor.lose
        engine.executor.go_on.set()
        await engine.client.wait_finished(request_id)
    assert engine.executor.num_initialized == 2
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 6)


async def test_a_worker_is_claimed_after_however_many_failed_steps():
    async with running() as engine:
        engine.core._steps.num_failed_steps = 2000
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)
        request_id = engine.add(max_tokens=1)
        await engine.client.wait_finished(request_id)


async def test_clients_hear_how_often_their_requests_were_suspected():
    async with running() as engine:
        engine.executor.num_failing_steps = 2
        request_id = engine.add(max_tokens=4, ignore_eos=True)
        await engine.client.wait_finished(request_id)
    assert engine.client.suspicions == {request_id: 2}


async def test_a_request_whose_step_always_fails_is_ended_and_others_go_on():
    async with running() as engine:
        engine.executor.num_failing_steps = 3
        bad = engine.add()
        await engine.client.wait_finished(bad)
        good = engine.add(max_tokens=2)
        await engine.client.wait_finished(good)
    assert engine.client.finished[bad].reason is FinishReason.ERROR
    assert engine.client.finished[bad].error_reason == "REQUEST_SUSPECTED"
    assert engine.client.finished[good].reason is not FinishReason.ERROR


async def test_two_workers_that_die_in_a_row_end_no_innocent_request():
    async with running() as engine:
        engine.executor.go_on.clear()
        ids = [engine.add([*PROMPT, number], max_tokens=6, ignore_eos=True) for number in range(4)]
        for times in (2, 3):
            await engine.executor.wait_in_flight(1)
            engine.executor.lose()
            await engine.wait_state(EngineState.READY, times)
        engine.executor.go_on.set()
        await engine.client.wait_finished(*ids)
    for number, request_id in enumerate(ids):
        assert engine.client.token_ids[request_id] == expected_output([*PROMPT, number], 6)


async def test_a_client_that_comes_during_a_drain_is_told_so():
    async with running() as engine:
        await engine.core.drain(timeout_s=0)
        late = FakeClient()
        engine.core.attach(late)
    assert late.draining == [0]


async def test_the_prefix_cache_can_be_reset_between_steps():
    async with running() as engine:
        first = engine.add(max_tokens=1)
        await engine.client.wait_finished(first)
        assert engine.core.reset_prefix_cache(reset_running_requests=False)
        second = engine.add(max_tokens=1)
        await engine.client.wait_finished(second)
        assert engine.client.finished[second].num_cached_tokens == 0


async def test_a_reset_needs_idle_blocks_unless_it_preempts():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=30, ignore_eos=True)
        await engine.executor.in_step.wait()
        assert not engine.core.reset_prefix_cache(reset_running_requests=False)
        assert engine.core.reset_prefix_cache(reset_running_requests=True)
        engine.executor.go_on.set()
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 30)


# Pauses.


async def test_a_pause_that_waits_ends_when_running_requests_have_finished():
    async with running() as engine:
        engine.executor.go_on.clear()
        first = engine.add(max_tokens=10, ignore_eos=True)
        await engine.executor.in_step.wait()
        pause = asyncio.create_task(engine.core.pause(PauseMode.WAIT))
        second = engine.add(max_tokens=2)
        await asyncio.sleep(0)
        assert not pause.done()
        engine.executor.go_on.set()
        await pause
        assert list(engine.client.finished) == [first]
        assert engine.core.make_stats().num_requests_waiting == 1
        engine.core.resume()
        await engine.client.wait_finished(second)
    assert len(engine.client.token_ids[first]) == 10


async def test_a_pause_that_keeps_stops_requests_where_they_are():
    async with running() as engine:
        request_id = engine.add(max_tokens=40, ignore_eos=True)
        await engine.client.wait_tokens(request_id, 3)
        await engine.core.pause(PauseMode.KEEP)
        num_tokens = len(engine.client.token_ids[request_id])
        other = engine.add(max_tokens=1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(engine.client.token_ids[request_id]) == num_tokens < 40
        assert other not in engine.client.token_ids
        engine.core.resume()
        await engine.client.wait_finished(request_id, other)
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 40)


async def test_a_pause_that_aborts_ends_all_requests_and_takes_new_ones_into_the_queue():
    async with running() as engine:
        engine.executor.go_on.clear()
        ids = [engine.add() for _ in range(12)]
        await engine.executor.in_step.wait()
        pause = asyncio.create_task(engine.core.pause(PauseMode.ABORT))
        await engine.client.wait_finished(*ids)
        assert {end.reason for end in engine.client.finished.values()} == {FinishReason.ABORT}
        engine.executor.go_on.set()
        await pause
        later = engine.add(max_tokens=1)
        assert engine.core.make_stats().num_requests_waiting == 1
        engine.core.resume()
        await engine.client.wait_finished(later)


async def test_a_pause_outlives_the_worker():
    async with running() as engine:
        request_id = engine.add(max_tokens=30, ignore_eos=True)
        await engine.client.wait_tokens(request_id, 2)
        await engine.core.pause(PauseMode.KEEP)
        num_tokens = len(engine.client.token_ids[request_id])
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(engine.client.token_ids[request_id]) == num_tokens
        engine.core.resume()
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 30)


async def test_a_drain_does_not_wait_for_requests_that_a_pause_keeps():
    async with running() as engine:
        request_id = engine.add(max_tokens=30, ignore_eos=True)
        await engine.client.wait_tokens(request_id, 2)
        await engine.core.pause(PauseMode.KEEP)
        async with asyncio.timeout(10):
            await engine.core.drain(timeout_s=3600)
    assert engine.client.error.reason == "DRAINING"


# Liveness.


async def test_a_scheduler_that_admits_nothing_is_told_and_goes_on_when_it_can(caplog):
    async with running() as engine:
        pool = engine.core._scheduler.kv_cache._pool
        leaked = pool.get_new_blocks(pool.num_free_blocks)
        request_id = engine.add(max_tokens=2)
        for _ in range(200):
            await asyncio.sleep(0)
        assert engine.core.liveness.is_stalled
        pool.free_blocks(leaked)
        await engine.client.wait_finished(request_id)
    assert engine.core.liveness.num_stalls == 1
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert ["scheduler_stalled" in str(record.msg) for record in errors] == [True]


async def test_a_paused_engine_is_not_stalled():
    async with running() as engine:
        await engine.core.pause(PauseMode.WAIT)
        engine.add(max_tokens=2)
        for _ in range(100):
            await asyncio.sleep(0)
    assert engine.core.liveness.num_stalls == 0


async def test_a_drain_lets_requests_finish_and_takes_no_more():
    async with running() as engine:
        request_id = engine.add(max_tokens=8)
        drain = asyncio.create_task(engine.core.drain(timeout_s=60))
        await asyncio.sleep(0)
        with pytest.raises(ServiceUnavailableError) as error:
            engine.add()
        assert error.value.reason == "DRAINING"
        await drain
    assert request_id in engine.client.finished
    assert engine.client.draining == [60]
    assert engine.client.error.reason == "DRAINING"


async def test_a_drain_lets_go_of_what_does_not_finish_in_time():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=8)
        await engine.core.drain(timeout_s=0)
        assert request_id not in engine.client.finished
        assert isinstance(engine.client.error, PagewireError)
        assert engine.core.make_stats().num_requests_running == 0


async def test_the_fingerprint_covers_what_decides_tokens():
    facts = make_facts()
    others = [
        make_facts(weights_digest="x"),
        make_facts(dtype="bfloat16"),
        make_facts(sampler_version="2"),
    ]
    fingerprints = {engine_fingerprint(item) for item in (facts, *others)}
    assert len(fingerprints) == 4
