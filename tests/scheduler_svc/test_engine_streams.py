"""Who may open a stream, and which one is a gateway's newest."""

import asyncio

import grpc
import pytest

from pagewire.kit.errors import from_rpc_error
from pagewire.v1 import scheduler_pb2
from scheduler_svc import gateway_session
from tests.scheduler_svc.gateway_client import GatewayClient
from tests.scheduler_svc.opened_streams import PROMPT, connect, end_of
from tests.scheduler_svc.sim_model import expected_output


async def test_the_first_frame_accepts_and_names_the_engine(stack):
    gateway = GatewayClient(stack.stub)
    accepted = await gateway.open()
    assert accepted.engine_fingerprint == stack.core.require_info().fingerprint
    assert accepted.scheduler_id
    assert gateway.frames[0].frame == 1


async def test_a_newer_generation_aborts_what_the_older_one_owns(stack):
    stack.worker.go_on.clear()
    old = await connect(stack, generation=1)
    await old.add(1, PROMPT, request_id="same", max_tokens=40)
    await old.read_until(lambda: 1 in old.admitted)
    new = await connect(stack, generation=2)
    await new.add(1, PROMPT, request_id="same")
    await new.read_until(lambda: 1 in new.admitted)
    assert (await end_of(old)).reason == "SUPERSEDED"
    stack.worker.go_on.set()
    await new.read_finished(1)
    assert new.token_ids[1] == expected_output(PROMPT, 5)


async def test_an_older_generation_is_refused(stack):
    new = await connect(stack, generation=2)
    old = GatewayClient(stack.stub, generation=1)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await old.open()
    assert from_rpc_error(error.value).reason == "STALE_GENERATION"
    await new.add(1, PROMPT)
    await new.read_finished(1)


@pytest.mark.parametrize("fate", ["killed", "held"])
async def test_a_restarted_gateway_takes_over_with_any_generation(stack, monkeypatch, fate):
    first = await connect(stack, epoch=1, generation=9)
    if fate == "killed":
        first.call.cancel()
        # Its connection breaks; the scheduler hears of it a moment after.
        gateway = await connect_when_free(stack, epoch=2, generation=1)
    else:
        monkeypatch.setattr(gateway_session, "TAKEOVER_SILENCE_S", 0.0)
        gateway = await connect(stack, epoch=2, generation=1)
        assert (await end_of(first)).reason == "SUPERSEDED"
    await gateway.add(1, PROMPT)
    await gateway.read_finished(1)


async def test_two_gateways_with_one_id_do_not_end_each_others_streams(stack):
    first = await connect(stack, epoch=1)
    for generation in (1, 2):
        second = GatewayClient(stack.stub, epoch=2, generation=generation)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await second.open()
        error = from_rpc_error(caught.value)
        assert (error.reason, error.field) == ("GATEWAY_ID_TAKEN", "gateway_id")
        assert "'g'" in error.message and "--gateway-id" in error.message
    await first.add(1, PROMPT)
    await first.read_finished(1)
    assert first.token_ids[1] == expected_output(PROMPT, 5)


async def test_gateways_get_only_their_own_outputs(stack):
    one, two = await connect(stack, gateway_id="one"), await connect(stack, gateway_id="two")
    await one.add(1, [1, 2, 3])
    await two.add(1, [4, 5, 6])
    await one.read_finished(1)
    await two.read_finished(1)
    assert one.token_ids == {1: expected_output([1, 2, 3], 5)}
    assert two.token_ids == {1: expected_output([4, 5, 6], 5)}


async def test_a_stream_that_does_not_open_is_refused(stack):
    call = stack.stub.EngineStream()
    await call.write(scheduler_pb2.EngineStreamRequest(frame=1))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def connect_when_free(stack, **options):
    async with asyncio.timeout(20):
        while True:
            try:
                return await connect(stack, **options)
            except grpc.aio.AioRpcError as error:
                assert from_rpc_error(error).reason == "GATEWAY_ID_TAKEN"
