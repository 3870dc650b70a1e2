"""The four services as processes on TCP, each with its own certificate, as on four machines."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagewire.kit.channels import open_channel
from pagewire.kit.health import SERVING
from pagewire.kit.tls import PeerTls
from tests.security.authority import Authority

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 240.0
END_TIMEOUT_S = 60.0

MODULES = {
    "tokenizer": "tokenizer_svc",
    "worker": "worker_svc",
    "scheduler": "scheduler_svc",
    "gateway": "gateway",
}
SERVICES = {
    "tokenizer": "pagewire.v1.TokenizerService",
    "worker": "pagewire.v1.WorkerService",
    "scheduler": "pagewire.v1.SchedulerService",
    "gateway": "pagewire.v1.InferenceService",
}


@dataclass
class Services:
    """Running services; addresses by role."""

    authority: Authority
    other_authority: Authority
    """Whom nobody trusts."""
    folder: Path
    listen: dict[str, str] = field(default_factory=dict)
    """The gateway's is its public gRPC API."""
    admin: dict[str, str] = field(default_factory=dict)
    vllm_grpc: str = ""
    http_port: int = 0
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def log(self, role: str) -> str:
        """What the process has said."""
        return (self.folder / f"{role}.log").read_text()


@contextmanager
def running_services(folder: Path, *, api_key: str) -> Iterator[Services]:
    """Start the services on the simulated worker, wait until the gateway serves, end them."""
    services = Services(Authority(folder, "ca"), Authority(folder, "other"), folder)
    ports = iter(_free_ports(10))
    services.listen = {role: f"127.0.0.1:{next(ports)}" for role in MODULES}
    services.admin = {role: f"127.0.0.1:{next(ports)}" for role in MODULES}
    services.vllm_grpc, services.http_port = f"127.0.0.1:{next(ports)}", next(ports)
    try:
        for role in MODULES:
            _start(services, role, api_key)
        admin = services.authority.issue("admin").peer("gateway")
        asyncio.run(_wait_serving(services.admin["gateway"], SERVICES["gateway"], admin))
        yield services
    finally:
        for process in services.processes.values():
            process.terminate()
        for process in services.processes.values():
            process.wait(END_TIMEOUT_S)


def _start(services: Services, role: str, api_key: str) -> None:
    identity = services.authority.issue(role)
    flags = [
        *identity.flags(),
        f"--admin-listen={services.admin[role]}",
        "--metrics-port=0",
        "--drain-timeout=0",
        "--log-level=debug",
        *_own_flags(services, role),
    ]
    kept = {name: v for name, v in os.environ.items() if not name.startswith("PAGEWIRE_")}
    with (services.folder / f"{role}.log").open("wb") as log:
        services.processes[role] = subprocess.Popen(
            [sys.executable, "-m", MODULES[role], *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**kept, "PAGEWIRE_API_KEY": api_key} if role == "gateway" else kept,
        )


def _own_flags(services: Services, role: str) -> list[str]:
    listen = services.listen
    if role == "tokenizer":
        return [f"--listen={listen[role]}", "--model=smollm2"]
    if role == "worker":
        return [f"--listen={listen[role]}"]
    if role == "scheduler":
        return [
            f"--listen={listen[role]}",
            f"--workers={listen['worker']}",
            f"--tokenizers={listen['tokenizer']}",
            f"--vllm-grpc-listen={services.vllm_grpc}",
            "--model=smollm2",
            "--device=sim",
        ]
    public = services.authority.issue("localhost", file="public")
    return [
        f"--grpc-listen={listen[role]}",
        f"--http-port={services.http_port}",
        f"--schedulers={listen['scheduler']}",
        f"--tokenizers={listen['tokenizer']}",
        f"--ssl-certfile={public.cert}",
        f"--ssl-keyfile={public.key}",
    ]


async def _wait_serving(target: str, service: str, tls: PeerTls) -> None:
    request = health_pb2.HealthCheckRequest(service=service)
    async with asyncio.timeout(START_TIMEOUT_S), open_channel(target, tls=tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        async for response in stub.Watch(request, wait_for_ready=True):
            if response.status == SERVING:
                return
    raise AssertionError(f"{service} ended before it served")


async def health_code(target: str, tls: PeerTls | None) -> grpc.StatusCode:
    """Ask a port for health and return how the call ended."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with open_channel(target, tls=tls, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        return await code_of(stub.Check(health_pb2.HealthCheckRequest(), timeout=30))


async def code_of(call: grpc.aio.UnaryUnaryCall[object, object]) -> grpc.StatusCode:
    """Return the status that a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
