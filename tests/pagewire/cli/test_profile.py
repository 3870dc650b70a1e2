"""`pagewire profile` against workers' administration ports that the test scripts."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pagewire.cli.profile import ProfileConfig, find_workers, profile
from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.errors import FailedPreconditionError, PagewireError, ServiceUnavailableError
from pagewire.kit.interceptors import server_interceptors
from pagewire.kit.metrics import RpcMetrics, new_registry
from pagewire.v1 import worker_pb2, worker_pb2_grpc


class ScriptedAdmin(worker_pb2_grpc.WorkerAdminServiceServicer):
    """A worker that profiles until `end`, or refuses."""

    def __init__(self, error: PagewireError | None = None) -> None:
        self.starts: list[worker_pb2.StartProfileRequest] = []
        self.stops: list[bool] = []
        self.waiting = asyncio.Event()
        self.end = asyncio.Event()
        self.address = ""
        self._error = error

    async def StartProfile(self, request: Any, context: Any) -> worker_pb2.StartProfileResponse:
        self.starts.append(request)
        if self._error is not None:
            raise self._error
        return worker_pb2.StartProfileResponse(
            path="/trace", max_steps=request.max_steps or 1000, max_seconds=300
        )

    async def StopProfile(self, request: Any, context: Any) -> worker_pb2.StopProfileResponse:
        self.stops.append(request.wait)
        self.waiting.set()
        if request.wait:
            await self.end.wait()
        self.end.set()
        operator = worker_pb2.OperatorTime(name="aten::mm", calls=7, self_cpu_ns=3_000_000)
        return worker_pb2.StopProfileResponse(
            path=f"/traces/{self.address}",
            num_steps=4,
            operators=[operator],
            total_self_cpu_ns=3_000_000,
        )


@asynccontextmanager
async def serving(*workers: ScriptedAdmin) -> AsyncIterator[tuple[str, ...]]:
    server_list = []
    for worker in workers:
        server = grpc.aio.server(interceptors=server_interceptors(RpcMetrics(new_registry())))
        worker_pb2_grpc.add_WorkerAdminServiceServicer_to_server(worker, server)
        worker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        server_list.append(server)
    yield tuple(worker.address for worker in workers)
    await asyncio.gather(*(server.stop(0) for server in server_list))


async def test_all_workers_are_started_awaited_and_added_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    workers = [ScriptedAdmin(), ScriptedAdmin()]
    for worker in workers:
        worker.end.set()
    async with serving(*workers) as addresses:
        assert await profile(ProfileConfig(steps=20, name="mine", targets=addresses)) == 0
    out = capsys.readouterr().out
    assert "profiling 2 workers: at most 20 steps and 300 s" in out
    for worker in workers:
        assert f"{worker.address}: 4 steps in 0.00 s: /traces/{worker.address}" in out
        assert [(start.max_steps, start.name) for start in worker.starts] == [(20, "mine")]
        assert worker.stops == [True]
    assert out.splitlines()[-1].split() == ["aten::mm", "14", "6.0", "100.0", "%"]


async def test_an_interrupt_ends_the_profile_and_shows_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker = ScriptedAdmin()
    async with serving(worker) as addresses:
        running = asyncio.create_task(profile(ProfileConfig(targets=addresses)))
        await worker.waiting.wait()
        os.kill(os.getpid(), signal.SIGINT)
        assert await running == 0
    assert worker.stops == [True, False]
    assert "aten::mm" in capsys.readouterr().out


async def test_when_all_refuse_one_is_named_and_the_others_are_heard() -> None:
    left_over: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: left_over.append(what))
    refusal = FailedPreconditionError("start it with --profiler-dir")
    async with serving(ScriptedAdmin(refusal), ScriptedAdmin(refusal)) as addresses:
        with pytest.raises(FailedPreconditionError, match="--profiler-dir"):
            await profile(ProfileConfig(targets=addresses))
    gc.collect()
    assert left_over == []


async def test_one_that_refuses_ends_the_others_and_is_named() -> None:
    refusing = ScriptedAdmin(FailedPreconditionError("profiling is off", reason="OFF"))
    other = ScriptedAdmin()
    async with serving(other, refusing) as addresses:
        with pytest.raises(FailedPreconditionError) as caught:
            await profile(ProfileConfig(targets=addresses))
    assert caught.value.message == f"{refusing.address}: profiling is off"
    assert other.stops == [False]


@pytest.mark.parametrize(
    ("flags", "steps", "seconds"),
    [((), 100, 0), (("--steps=5",), 5, 0), (("--seconds=9",), 0, 9)],
)
def test_one_limit_that_is_given_stands_alone(
    flags: tuple[str, ...], steps: int, seconds: int
) -> None:
    request = load_config(ProfileConfig, prog="x", argv=flags, env={}).start_request()
    assert (request.max_steps, request.max_seconds) == (steps, seconds)


@pytest.mark.parametrize("flag", ["--steps=0", "--seconds=-1", "--targets=nowhere"])
def test_what_cannot_be_is_refused_in_one_line(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag.partition("=")[0]):
        load_config(ProfileConfig, prog="x", argv=[flag], env={})


@pytest.fixture
def runtime_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def listening(*paths: Path) -> AsyncIterator[None]:
    servers = []
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()
        servers.append(server)
    yield
    for server in servers:
        server.close()


async def test_the_workers_of_the_stack_that_runs_are_found(runtime_root: Path) -> None:
    stack = runtime_root / "pagewire-1-a"
    names = ["worker-0-admin.sock", "worker-1-admin.sock", "worker-0.sock", "gateway-admin.sock"]
    dead = runtime_root / "pagewire-2-b" / "worker-admin.sock"
    dead.parent.mkdir()
    socket.socket(socket.AF_UNIX).bind(str(dead))
    async with listening(*(stack / name for name in names)):
        assert find_workers() == [f"unix:{stack / name}" for name in names[:2]]


async def test_no_stack_and_several_stacks_ask_for_addresses(runtime_root: Path) -> None:
    with pytest.raises(ServiceUnavailableError, match="--profiler-dir"):
        find_workers()
    paths = [runtime_root / f"pagewire-{i}-x" / "worker-admin.sock" for i in range(2)]
    async with listening(*paths):
        with pytest.raises(ServiceUnavailableError) as caught:
            find_workers()
    for path in paths:
        assert f"--targets unix:{path}" in caught.value.message
