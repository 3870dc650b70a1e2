"""Requests that workers fail on again and again."""

from scheduler_svc.engine_state import EngineState
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.running_engine import PROMPT, running
from tests.scheduler_svc.sim_model import expected_output


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
