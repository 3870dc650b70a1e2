import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import InvalidRequestError, from_rpc_error
from pagewire.kit.server import ServiceServer
from pagewire.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from scheduler_svc.server import SERVICE_NAME, SchedulerServer
from tests.fakes.fake_worker import FakeWorker
from tests.scheduler_svc.conftest import make_service_config, wait_ready
from tests.scheduler_svc.sim_model import expected_output

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def wait_health(stub, status):
    async with asyncio.timeout(10):
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAME)):
            if answer.status == status:
                return


async def test_readiness_follows_the_worker():
    worker = FakeWorker()
    address = await worker.start()
    await worker.stop()
    server = SchedulerServer(make_service_config(address))
    await server.start()
    async with open_channel(server.server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        alive = await health.Check(health_pb2.HealthCheckRequest(service=""))
        assert alive.status == SERVING
        await wait_health(health, NOT_SERVING)
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.GetEngineInfo(scheduler_pb2.GetEngineInfoRequest())
        assert from_rpc_error(error.value).reason == "STARTING"
        await worker.start()
        await wait_health(health, SERVING)
        await worker.stop()
        await wait_health(health, NOT_SERVING)
        await worker.start()
        await wait_health(health, SERVING)
    await server.stop()
    assert worker.was_closed
    await worker.stop()


async def test_a_part_that_fails_ends_the_service(monkeypatch):
    """Else it would live on with a readiness that nobody reports any more."""

    async def fail(self):
        raise RuntimeError("a bug")

    monkeypatch.setattr(SchedulerServer, "_report_readiness", fail)
    server = SchedulerServer(make_service_config("127.0.0.1:1"))
    await server.start()
    with pytest.raises(RuntimeError, match="a bug"):
        async with asyncio.timeout(20):
            await server.run_until(asyncio.Event().wait())
    await server.stop()


async def test_a_refused_configuration_ends_the_service_with_its_reason():
    worker = FakeWorker()
    worker.refusal = InvalidRequestError("no such model")
    await worker.start()
    server = SchedulerServer(make_service_config(worker.address))
    await server.start()
    with pytest.raises(InvalidRequestError, match="no such model"):
        async with asyncio.timeout(10):
            await server.run_until(asyncio.Event().wait())
    await server.stop()
    await worker.stop()


async def test_a_step_that_fails_costs_neither_the_worker_nor_a_token(stack):
    events = stack.core.kv_events
    prompts = [[number, *range(20)] for number in range(4)]
    params = common_pb2.SamplingParams(max_tokens=40, ignore_eos=True)
    calls = [
        aiter(
            stack.stub.Generate(
                scheduler_pb2.SchedulerServiceGenerateRequest(
                    prompt_token_ids=prompt, sampling_params=params
                ),
                timeout=20,
            )
        )
        for prompt in prompts
    ]
    first = [await anext(call) for call in calls]
    stack.worker.fail_next_steps = 1
    for prompt, message, call in zip(prompts, first, calls, strict=True):
        token_ids = list(message.token_ids)
        async for message in call:
            token_ids += message.token_ids
        assert token_ids == expected_output(prompt, 40)
    assert stack.worker.fail_next_steps == 0
    assert stack.worker.num_initialized == 1
    assert stack.core.counters.num_workers_lost == 0
    # What was computed before the failure is still there.
    assert not any(batch.all_cleared for batch in events._batches)


async def test_figures_are_exposed_for_prometheus(stack):
    text = generate_latest(stack.server.server.registry).decode()
    labels = '{engine="0",model_name="fake"}'
    assert f"pagewire:engine_ready{labels} 1.0" in text
    assert f"pagewire:kv_cache_usage_perc{labels} 0.0" in text
    assert f"pagewire:num_preemptions_total{labels} 0.0" in text


async def test_calls_upon_the_end_of_a_drain_are_still_refused_by_handlers(stack, monkeypatch):
    async def wait_quiet(server: ServiceServer) -> None:
        is_waiting.set()
        await asked.wait()

    is_waiting, asked = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(ServiceServer, "wait_quiet", wait_quiet)
    stopping = asyncio.create_task(stack.server.stop())
    await is_waiting.wait()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        request = scheduler_pb2.SchedulerServiceGenerateRequest(prompt_token_ids=[1, 2, 3])
        async for _ in stack.stub.Generate(request, timeout=20):
            pass
    assert from_rpc_error(refused.value).reason == "DRAINING"
    asked.set()
    await stopping


async def test_stopping_twice_is_harmless():
    worker = FakeWorker()
    await worker.start()
    server = SchedulerServer(make_service_config(worker.address))
    await server.start()
    await wait_ready(server)
    await server.stop()
    await server.stop()
    await worker.stop()
