import asyncio
from contextlib import aclosing

import pytest

from pagewire.kit.errors import InternalError, InvalidRequestError, ServiceUnavailableError
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.direct_client import DirectClient, DirectOutput
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.factories import make_core_request
from tests.scheduler_svc.fakes import FakeExecutor, make_config

END = FinishedRequest("r", FinishReason.LENGTH, 1, 2, 0)


def make_client():
    return DirectClient(EngineCore(make_config(), FakeExecutor()))


def put(client, *token_ids, end=None):
    outputs = EngineCoreOutputs(1, ["r"], [list(token_ids)], finished=[end] if end else [])
    client.put_outputs(outputs, StepTimings())


async def test_tokens_that_were_not_read_merge():
    client = make_client()
    put(client, 1)
    put(client, 2)
    assert await anext(client.stream()) == DirectOutput([1, 2])


async def test_what_comes_while_the_caller_is_busy_is_not_lost():
    client, got = make_client(), []
    put(client, 1)
    async for output in client.stream():
        got.append(output)
        if output.end is None:
            put(client, 2, end=END)
    assert got == [DirectOutput([1]), DirectOutput([2], end=END)]


async def test_a_failed_request_raises():
    client = make_client()
    client.put_finished([FinishedRequest("r", FinishReason.ERROR, 1, 0, 0, message="bad row")])
    with pytest.raises(InternalError, match="bad row"):
        await anext(client.stream())


async def test_a_request_that_forbids_every_token_is_told_that_it_is_at_fault():
    client = make_client()
    end = FinishedRequest(
        "r", FinishReason.ERROR, 1, 0, 0, error_reason="EMPTY_MASK", message="no token"
    )
    client.put_finished([end])
    with pytest.raises(InvalidRequestError, match="no token") as caught:
        await anext(client.stream())
    assert caught.value.reason == "EMPTY_MASK"


async def test_an_engine_that_goes_away_raises_why():
    client = make_client()
    client.end(ServiceUnavailableError("going away"))
    with pytest.raises(ServiceUnavailableError):
        await anext(client.stream())


async def test_an_end_that_came_in_time_is_told_though_the_engine_goes_away():
    client = make_client()
    put(client, 1, end=END)
    client.end(ServiceUnavailableError("going away"))
    assert await anext(client.stream()) == DirectOutput([1], end=END)


async def test_closing_an_ended_request_leaves_another_one_of_its_id_alone():
    core = EngineCore(make_config(), FakeExecutor())
    is_ready = asyncio.Event()
    core.on_state = lambda state: is_ready.set() if state is EngineState.READY else None
    running = asyncio.create_task(core.run())
    try:
        async with asyncio.timeout(20):
            await is_ready.wait()
            ended, going = DirectClient(core), DirectClient(core)
            ended.add(make_core_request(4, "r", max_tokens=1, client_id=ended.client_id))
            _ = [output async for output in ended.stream()]
            more = {"max_tokens": 20, "ignore_eos": True, "client_id": going.client_id}
            going.add(make_core_request(4, "r", **more))
            async with aclosing(going.stream()) as outputs:
                tokens = list((await anext(outputs)).token_ids)
                ended.close()
                async for output in outputs:
                    tokens += output.token_ids
    finally:
        running.cancel()
        await asyncio.wait((running,))
    assert len(tokens) == 20
