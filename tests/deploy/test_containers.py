"""The images and compose.yaml on a real Docker Engine, with the simulated worker.

What the engine kills, and when, is told by it; which tokens a request must get, by the oracle.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagewire.kit.channels import open_channel
from pagewire.v1 import inference_pb2, inference_pb2_grpc
from tests.deploy.buildkit import build_with_buildkit
from tests.deploy.container_engine import (
    PYTHON_IMAGE,
    TAG,
    build,
    docker,
    inspect,
    make_context,
    require_engine,
    require_images,
)
from tests.deploy.container_stack import WAIT_S, ComposeStack, Reset, compose_stack
from tests.e2e.requests import alone, generate, sim_request

require_engine()

# Images take minutes on a machine that has nothing of them yet.
pytestmark = pytest.mark.timeout(1800)

SERVICES = ("gateway", "scheduler", "worker", "tokenizer")
IMAGES = ("gateway", "tokenizer", "scheduler", "worker-sim")
SIMULATED = {"PAGEWIRE_WORKER_TARGET": "worker-sim", "PAGEWIRE_DEVICE": "sim"}
OVERRIDE = {
    "services": {
        **{name: {"healthcheck": {"interval": "5s"}} for name in SERVICES},
        "scheduler": {
            "healthcheck": {"interval": "5s"},
            # Slow enough for a fault to come while all streams run.
            "environment": {"PAGEWIRE_SIM_STEP_TIME_US": "40000"},
        },
    }
}
# Of an image, as its containers get it.
CONFIG = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "StopSignal", "User",
    "WorkingDir",
)  # fmt: skip
NUM_REPLICAS = 3
NUM_STREAMS = 24
NUM_TOKENS = 200
SCHEDULER_METRICS = 9102
KILLED = 128 + signal.SIGKILL


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The images of this test run; gives the folder that they were built from."""
    require_images(PYTHON_IMAGE)
    extras = ("gateway", "tokenizer", "scheduler", "worker-sim")
    context = make_context(tmp_path_factory.mktemp("containers"), extras)
    names = [build(context, target) for target in IMAGES]
    yield context
    docker("image", "rm", "--force", "--no-prune", *names)


@pytest.fixture(scope="module")
def stack(images: Path) -> Iterator[ComposeStack]:
    with compose_stack(images, SIMULATED, OVERRIDE) as stack:
        yield stack


@pytest.fixture
def single(stack: ComposeStack) -> ComposeStack:
    """One container a service."""
    stack.up(scheduler=1, worker=1)
    return stack


@pytest.fixture
def replicas(stack: ComposeStack) -> ComposeStack:
    """Three schedulers with a worker each, all of which have answered requests."""
    stack.up(scheduler=NUM_REPLICAS, worker=NUM_REPLICAS)
    asyncio.run(wait_shared(stack))
    return stack


@pytest.mark.parametrize("image", ["gateway", "worker-sim"])
def test_buildkit_makes_the_same_image(images: Path, image: str) -> None:
    name = build_with_buildkit(images, image)
    try:
        assert contents(name) == contents(f"pagewire/{image}:{TAG}")
    finally:
        docker("image", "rm", "--force", "--no-prune", name)


def test_compose_builds_what_the_dockerfile_builds(images: Path, stack: ComposeStack) -> None:
    before = contents(f"pagewire/gateway:{TAG}")
    stack.compose("build", "gateway")
    assert contents(f"pagewire/gateway:{TAG}") == before


def test_the_gpu_profile_serves_with_its_own_worker(images: Path) -> None:
    """As on a machine with a device, but for the device: its place has the simulated worker."""
    name = f"pagewire/worker-gpu:{TAG}"
    docker("tag", f"pagewire/worker-sim:{TAG}", name)
    override = {"services": {**OVERRIDE["services"], "worker-gpu": {"deploy": Reset()}}}
    environment = {**SIMULATED, "COMPOSE_PROFILES": "gpu"}
    try:
        with compose_stack(images, environment, override, "gpu") as stack:
            stack.up(worker=0)
            assert stack.containers("worker") == [] and len(stack.containers("worker-gpu")) == 1
            check_answers(stack)
    finally:
        docker("image", "rm", "--force", "--no-prune", name)


def test_a_stack_that_is_up_answers(single: ComposeStack) -> None:
    check_answers(single)


@pytest.mark.parametrize("service", SERVICES)
def test_containers_may_do_little(single: ComposeStack, service: str) -> None:
    (container,) = single.containers(service)
    found = inspect(container)
    config, host = found["Config"], found["HostConfig"]
    assert config["User"] == "10001:10001"
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    # As the kernel has it: who it is, and what it may gain.
    status = docker("exec", container, "python", "-c", "print(open('/proc/1/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert set(fields["Uid"].split()) == {"10001"} and int(fields["CapBnd"], 16) == 0
    write = "import pathlib; pathlib.Path('/app/x').write_text('')"
    with pytest.raises(AssertionError, match=r"Read-only file system|Permission denied"):
        docker("exec", container, "python", "-c", write)


@pytest.mark.parametrize("image", IMAGES)
def test_no_shell_starts_anything_in_an_image(images: Path, image: str) -> None:
    config = inspect(f"pagewire/{image}:{TAG}")["Config"]
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "pagewire", "healthcheck"]
    assert config["Entrypoint"][0] == "python" and not config["Cmd"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Labels"]["org.opencontainers.image.version"]


def test_images_have_one_service_and_no_torch(single: ComposeStack) -> None:
    modules = {
        "gateway": "gateway",
        "scheduler": "scheduler_svc",
        "tokenizer": "tokenizer_svc",
        "worker": "worker_svc",
    }
    for service, module in modules.items():
        (container,) = single.containers(service)
        find = (
            "import importlib.util as u, sys;"
            "print(*(n for n in sys.argv[1:] if u.find_spec(n) is not None))"
        )
        names = [*modules.values(), "torch", "pip"]
        assert docker("exec", container, "python", "-c", find, *names).split() == [module]


def test_a_process_that_dies_is_started_again(single: ComposeStack) -> None:
    (worker,) = single.containers("worker")
    pid = inspect(worker)["State"]["Pid"]
    if b"worker_svc" not in _command_line(pid):
        pytest.skip("a dying process is NOT tested: the engine runs on another machine")
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while inspect(worker)["RestartCount"] == 0:
        assert time.monotonic() < deadline
    single.wait_healthy(worker)
    asyncio.run(run_requests(single, make_requests("after a restart", 4)))


def test_three_replicas_share_the_load(replicas: ComposeStack) -> None:
    before = tokens_by_scheduler(replicas)
    requests = make_requests("shared", NUM_STREAMS)
    asyncio.run(run_requests(replicas, requests))
    after = tokens_by_scheduler(replicas)
    made = sorted(after[container] - before[container] for container in after)
    assert len(made) == NUM_REPLICAS and sum(made) == NUM_STREAMS * NUM_TOKENS
    assert made[0] >= sum(made) / (2 * NUM_REPLICAS), made


@pytest.mark.parametrize("service", ["scheduler", "worker"])
def test_a_killed_container_loses_no_token(replicas: ComposeStack, service: str) -> None:
    asyncio.run(run_requests(replicas, make_requests(service, NUM_STREAMS), kill=service))
    assert len(replicas.containers(service)) == NUM_REPLICAS - 1


def test_all_end_in_their_grace_period(replicas: ComposeStack) -> None:
    containers = replicas.containers()
    assert len(containers) == 2 + 2 * NUM_REPLICAS
    replicas.compose("stop")
    states = [inspect(container)["State"] for container in containers]
    assert [state["ExitCode"] for state in states] == [0] * len(containers)


def test_sigterm_is_not_lost_while_a_service_starts(images: Path) -> None:
    # As process 1 it has no default action for signals.
    for image in IMAGES:
        container = docker("run", "--detach", f"pagewire/{image}:{TAG}").strip()
        try:
            wait_catches(container, signal.SIGTERM)
            docker("stop", "--time=60", container)
            assert inspect(container)["State"]["ExitCode"] != KILLED
        finally:
            docker("rm", "--force", container)


def check_answers(stack: ComposeStack) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 8, "ignore_eos": True}
    answer = httpx.post(f"{stack.http_url}/v1/chat/completions", json=body, timeout=WAIT_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8


def contents(image: str) -> tuple[dict[str, Any], str]:
    """An image's configuration, and digests of what was put into it, but for files with times."""
    code = """
import hashlib, pathlib
for folder in ("/app", "/opt/pagewire"):
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            print(path, hashlib.sha256(path.read_bytes()).hexdigest())
"""
    found = inspect(image)["Config"]
    config = {key: found.get(key) for key in CONFIG}
    labels = found["Labels"].items()
    config["Labels"] = {key: value for key, value in labels if "docker.compose" not in key}
    return config, docker("run", "--rm", "--entrypoint=python", image, "-c", code)


def make_requests(seed: str, count: int) -> list[inference_pb2.GenerateRequest]:
    rng = random.Random(seed)
    return [sim_request(rng, number, NUM_TOKENS) for number in range(count)]


async def run_requests(
    stack: ComposeStack,
    requests: Sequence[inference_pb2.GenerateRequest],
    kill: str | None = None,
) -> None:
    """Run requests at once; kill a container of a service when each has a token; check them all."""
    first_tokens = [asyncio.Event() for _ in requests]
    async with open_channel(stack.grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        tasks = [
            asyncio.create_task(generate(stub, request, event))
            for request, event in zip(requests, first_tokens, strict=True)
        ]
        if kill is not None:
            await asyncio.gather(*(event.wait() for event in first_tokens))
            await asyncio.to_thread(docker, "kill", stack.containers(kill)[0])
            assert not any(task.done() for task in tasks)
        outputs = await asyncio.gather(*tasks)
    wrong = [n for n, request in enumerate(requests) if outputs[n] != alone(request)]
    assert wrong == []


async def wait_shared(stack: ComposeStack) -> None:
    """Send requests until every scheduler has had some: the gateway learns of them as it goes."""
    deadline = time.monotonic() + WAIT_S
    rounds = 0
    while not all(tokens_by_scheduler(stack).values()):
        assert time.monotonic() < deadline, tokens_by_scheduler(stack)
        rounds += 1
        rng = random.Random(rounds)
        await run_requests(stack, [sim_request(rng, n, 20) for n in range(2 * NUM_REPLICAS)])


def tokens_by_scheduler(stack: ComposeStack) -> dict[str, float]:
    """Tokens that each running scheduler has generated."""
    return {
        container: stack.figure(
            container, SCHEDULER_METRICS, "pagewire:engine_generation_tokens_total"
        )
        for container in stack.containers("scheduler")
    }


def wait_catches(container: str, number: signal.Signals) -> None:
    """Wait until the container's first process has a handler for a signal."""
    pid = inspect(container)["State"]["Pid"]
    deadline = time.monotonic() + WAIT_S
    while not _caught(pid) >> (number - 1) & 1:
        assert time.monotonic() < deadline, docker("logs", container)


def _caught(pid: int) -> int:
    """Signals that a process has handlers for, as bits."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(
        next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16
    )


def _command_line(pid: int) -> bytes:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""
