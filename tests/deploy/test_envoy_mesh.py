"""A mesh of real Envoys with mTLS between them: what it carries, and what may fail in it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest

from pagewire import Client
from pagewire.kit.channels import open_channel
from pagewire.v1 import (
    inference_pb2_grpc,
    scheduler_pb2,
    scheduler_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from tests.deploy.mesh import Layout, Mesh, running_mesh
from tests.e2e.requests import alone, generate, sim_request
from tests.e2e.sdk_checks import check_many_requests, check_refusals

TIMEOUT_S = 240.0
NUM_CLIENTS = 8


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """Two gateways and two replicas on the simulated worker."""
    with running_mesh(Layout(num_gateways=2, num_replicas=2)) as mesh:
        yield mesh


@asynccontextmanager
async def inference(
    target: str,
) -> AsyncIterator[inference_pb2_grpc.InferenceServiceAsyncStub]:
    """A stub that tries nothing again by itself."""
    async with open_channel(target, options=(("grpc.enable_retries", 0),)) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


@asynccontextmanager
async def paused(mesh: Mesh) -> AsyncIterator[None]:
    """Both engines stand still within the block: nothing ends by itself."""
    async with engine_admins(mesh) as admins:
        mode = scheduler_pb2.PAUSE_MODE_KEEP
        for admin in admins:
            await admin.Pause(scheduler_pb2.PauseRequest(mode=mode), timeout=TIMEOUT_S)
        try:
            yield
        finally:
            for admin in admins:
                await admin.Resume(scheduler_pb2.ResumeRequest(), timeout=TIMEOUT_S)


@asynccontextmanager
async def engine_admins(
    mesh: Mesh,
) -> AsyncIterator[list[scheduler_pb2_grpc.EngineAdminServiceAsyncStub]]:
    targets = [mesh.direct(pod.name, 50062) for pod in mesh.role("scheduler")]
    async with open_channel(targets[0]) as first, open_channel(targets[1]) as second:
        yield [scheduler_pb2_grpc.EngineAdminServiceStub(each) for each in (first, second)]


async def wait_requests(mesh: Mesh, wanted: int) -> None:
    """Wait until the engines together have so many requests."""
    async with asyncio.timeout(TIMEOUT_S):
        while sum([await num_requests(mesh, pod.name) for pod in mesh.role("scheduler")]) != wanted:
            pass


async def num_requests(mesh: Mesh, scheduler: str) -> int:
    async with open_channel(mesh.direct(scheduler, 50052)) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        async for load in stub.WatchLoad(scheduler_pb2.WatchLoadRequest(), timeout=TIMEOUT_S):
            return load.num_requests_running + load.num_requests_waiting
    raise AssertionError("WatchLoad ended")


async def test_requests_go_through_and_are_counted_by_method(mesh: Mesh) -> None:
    rng = random.Random(1)
    requests = [sim_request(rng, number) for number in range(16)]
    async with inference(mesh.grpc_target) as stub:
        outputs = await asyncio.gather(*(generate(stub, each) for each in requests))
    assert outputs == [alone(each) for each in requests]
    generated = "grpc.pagewire.v1.InferenceService.Generate.success"
    assert mesh["client"].stats(generated)[f"cluster.inference.{generated}"] == len(requests)
    name, gateways = f"cluster.app-inference.{generated}", mesh.role("gateway")
    assert sum(each.stats(generated).get(name, 0) for each in gateways) == len(requests)
    for gateway in gateways:
        told = gateway.stats("EngineStream.request_message_count")
        assert sorted(told) == [
            f"cluster.scheduler-{n}.grpc.pagewire.v1.SchedulerService.EngineStream"
            ".request_message_count"
            for n in range(2)
        ]
        assert min(told.values()) > 0


async def test_the_sdk_has_its_answers_and_refusals(mesh: Mesh) -> None:
    await check_many_requests(mesh.grpc_target)
    with Client(mesh.grpc_target) as client:
        await asyncio.to_thread(check_refusals, client)


async def test_logs_have_calls_and_no_prompts(mesh: Mesh) -> None:
    body = {"model": "smollm2", "prompt": "xyzzy plugh", "max_tokens": 2}
    async with httpx.AsyncClient(base_url=mesh.http_url, timeout=TIMEOUT_S) as client:
        answer = await client.post("/v1/completions?secret=plugh", json=body)
        bad = await client.post("/v1/completions", json=body | {"plugh": 1, "n": "plugh"})
    assert (answer.status_code, bad.status_code) == (200, 400)
    client_pod = mesh["client"]
    path, link = '"path":"/v1/completions"', '"link":"egress-openai"'
    # Envoy writes its log some time after the call.
    mesh.wait(lambda: client_pod.log("sidecar").count(path) >= 2, "the log")
    line = next(each for each in client_pod.log("sidecar").splitlines() if path in each)
    assert link in line and json.loads(line)["status"] == 200
    for pod in mesh.pods.values():
        text = pod.log("sidecar")
        assert "plugh" not in text and "xyzzy" not in text


async def test_events_come_at_once_and_a_client_that_leaves_frees_its_request(mesh: Mesh) -> None:
    # Greedy: a first token that is drawn may be an end of sequence, which has no text.
    body = {"prompt": [5, 6, 7], "temperature": 0, "ignore_eos": True, "max_tokens": 1500}
    async with (
        httpx.AsyncClient(base_url=mesh.http_url, timeout=TIMEOUT_S) as client,
        client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer,
    ):
        events = answer.aiter_lines()  # kept: the answer is closed with it
        first = await anext(events)
        assert json.loads(first.removeprefix("data: "))["choices"][0]["text"], first
        async with paused(mesh):
            await wait_requests(mesh, 1)
            await answer.aclose()
            await wait_requests(mesh, 0)


async def test_a_call_that_is_cancelled_frees_its_request(mesh: Mesh) -> None:
    request = sim_request(random.Random(2), 1, max_tokens=1500)
    async with inference(mesh.grpc_target) as stub:
        call = stub.Generate(request, timeout=TIMEOUT_S)
        await call.read()
        async with paused(mesh):
            await wait_requests(mesh, 1)
            call.cancel()
            await wait_requests(mesh, 0)


async def test_silent_streams_live_where_the_mesh_has_no_idle_timeout(mesh: Mesh) -> None:
    # What would happen otherwise: another client's sidecar ends streams after a second.
    mesh.add_client("client-impatient", stream_idle_timeout="1s")
    request = sim_request(random.Random(3), 1, max_tokens=10)
    impatient = f"{mesh['client-impatient'].ip}:50050"
    async with inference(mesh.grpc_target) as ours, inference(impatient) as other:
        async with paused(mesh):
            waiting = asyncio.create_task(generate(ours, request))
            await wait_requests(mesh, 1)
            # Said in words before the answer has begun, by a reset after that.
            with pytest.raises(grpc.aio.AioRpcError):
                await generate(other, request)
            assert not waiting.done()
        ended = mesh["client-impatient"].stats("downstream_rq_idle_timeout")
        assert sum(ended.values()) == 1, ended
        assert await waiting == alone(request)


@pytest.mark.parametrize(
    ("role", "may_call"), [("scheduler", True), ("gateway", False), ("", False)]
)
async def test_a_worker_answers_its_scheduler_alone(mesh: Mesh, role: str, may_call: bool) -> None:
    folder = mesh.authority.issue(role or "none", mesh.folder / f"stranger-{role}")
    authority, key, certificate = (
        (folder / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")
    )
    pair = (key, certificate) if role else (None, None)
    credentials = grpc.ssl_channel_credentials(authority, *pair)
    options = (("grpc.ssl_target_name_override", "worker"),)
    target = f"{mesh['worker-0'].ip}:15053"
    async with grpc.aio.secure_channel(target, credentials, options) as channel:
        call = worker_pb2_grpc.WorkerServiceStub(channel).GetStatus
        if may_call:
            await call(worker_pb2.GetStatusRequest(), timeout=TIMEOUT_S)
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(worker_pb2.GetStatusRequest(), timeout=TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class Load:
    """Clients that send requests one after another, without a second try, and check the answers."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._is_over = False
        self._done = asyncio.Semaphore(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Send within the block; any request that fails is raised from it."""
        async with asyncio.TaskGroup() as group:
            for number in range(NUM_CLIENTS):
                group.create_task(self._send(random.Random(number)))
            yield self
            self._is_over = True

    async def more(self) -> None:
        """Wait for some more answers than there are by now."""
        while not self._done.locked():
            await self._done.acquire()
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(4 * NUM_CLIENTS):
                await self._done.acquire()

    async def _send(self, rng: random.Random) -> None:
        async with inference(self._mesh.grpc_target) as stub:
            while not self._is_over:
                request = sim_request(rng, rng.randrange(1000))
                assert await generate(stub, request) == alone(request)
                self._done.release()


@pytest.mark.parametrize("name", ["scheduler-0", "gateway-0"])
async def test_a_replica_that_is_drained_fails_no_request(mesh: Mesh, name: str) -> None:
    async with Load(mesh).running() as load:
        await load.more()
        await asyncio.to_thread(mesh.drain, name)
        await load.more()
        mesh[name].start()
        await asyncio.to_thread(mesh.wait_whole)
        await load.more()


async def test_kill_9_of_a_scheduler_loses_no_token(mesh: Mesh) -> None:
    rng = random.Random(4)
    requests = [sim_request(rng, number, max_tokens=150) for number in range(16)]
    started = [asyncio.Event() for _ in requests]
    async with inference(mesh.grpc_target) as stub:
        running = [
            asyncio.create_task(generate(stub, request, event))
            for request, event in zip(requests, started, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in started))
        assert await num_requests(mesh, "scheduler-0") > 0
        await asyncio.to_thread(mesh.kill_app, "scheduler-0")
        assert await asyncio.gather(*running) == [alone(request) for request in requests]
    mesh["scheduler-0"].start_app()
    await asyncio.to_thread(mesh.wait_whole)
