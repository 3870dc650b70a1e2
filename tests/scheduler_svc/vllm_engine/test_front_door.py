import asyncio
import importlib.util
import socket
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import FailedPreconditionError
from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.server import SchedulerServer
from scheduler_svc.vllm_engine.front_door import SERVICE_NAME
from tests.fakes.fake_worker import FakeWorker
from tests.scheduler_svc.conftest import make_service_config
from tests.scheduler_svc.vllm_engine.conftest import (
    FilesTokenizer,
    running_vllm_stack,
    when_listening,
)

NOBODY = "127.0.0.1:1"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_server(worker, listen):
    return SchedulerServer(replace(make_service_config(worker), vllm_grpc_listen=listen))


async def test_it_is_off_unless_asked_for():
    assert SchedulerServer(make_service_config(NOBODY)).vllm_engine is None


async def test_a_missing_package_is_one_clear_line(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "scheduler_svc.server.find_spec",
        lambda name: None if name == "smg_grpc_proto" else find_spec(name),
    )
    with pytest.raises(FailedPreconditionError, match=r"pip install 'pagewire\[smg\]'"):
        make_server(NOBODY, "127.0.0.1:0")


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ValueError, match="vllm_grpc_listen"):
        SchedulerServiceConfig(vllm_grpc_listen="here")


async def test_an_address_in_use_is_found_at_the_start():
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = make_server(NOBODY, f"127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(FailedPreconditionError, match="in use"):
            await server.start()
        await server.stop()


async def test_it_listens_only_once_the_engine_is_ready():
    worker = FakeWorker()
    address = await worker.start()
    await worker.stop()
    port = free_port()
    server = make_server(address, f"127.0.0.1:{port}")
    listening = when_listening(server)
    await server.start()
    try:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await worker.start()
        async with asyncio.timeout(10):
            await listening.wait()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop()
        await worker.stop()


async def test_its_calls_are_in_the_schedulers_metrics(stack):
    await stack.generate()
    metrics = generate_latest(stack.server.server.registry).decode()
    assert 'pagewire:rpc_handled_total{code="OK",method="/vllm.grpc.engine.VllmEngine/' in metrics


async def test_it_serves_nothing_of_the_schedulers(stack):
    async with open_channel(stack.front_door.server.address) as channel:
        call = channel.unary_unary("/pagewire.v1.SchedulerService/GetEngineInfo")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(b"")
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_it_gets_the_vocabulary_from_the_tokenizer():
    async with FilesTokenizer() as tokenizer, running_vllm_stack((tokenizer.target,)) as stack:
        fetching = [t for t in asyncio.all_tasks() if t.get_name() == "vllm-vocabulary"]
        await asyncio.gather(*fetching)
        assert stack.servicer.vocabulary.token_bytes[:2] == (b"\0", b"\1")


async def test_a_drain_ends_its_streams_with_a_status(stack):
    stack.worker.go_on.clear()
    running = asyncio.create_task(stack.generate(max_tokens=50))
    await stack.wait_load(1)
    await stack.core.drain(0)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await running
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
