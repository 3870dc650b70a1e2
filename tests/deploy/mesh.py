"""A mesh on the loopback: each pod has an address of its own, a service and a real Envoy.

Pods are reached as in a cluster: services listen at their usual ports of their pod's address, and
speak to their sidecar alone; sidecars speak mTLS. Only the harness goes past them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.cli.ready import GATEWAY_SERVICE
from pagewire.kit.healthcheck import check
from tests.deploy.authority import Authority
from tests.deploy.pod import WAIT_TIMEOUT_S, Pod
from tests.deploy.rendering import render

SIM = ("--device=sim", "--sim-step-time-us=20000")
_POLL_S = 0.05
_MODULES = {
    "gateway": "gateway",
    "tokenizer": "tokenizer_svc",
    "scheduler": "scheduler_svc",
    "worker": "worker_svc",
}
_SERVICES = {
    "gateway": GATEWAY_SERVICE,
    "tokenizer": "pagewire.v1.TokenizerService",
    "scheduler": "pagewire.v1.SchedulerService",
    "worker": "pagewire.v1.WorkerService",
}


@dataclass(frozen=True)
class Layout:
    """How many of each, and what schedulers are told. A pod `client` stands for an application."""

    num_gateways: int = 1
    num_tokenizers: int = 1
    num_replicas: int = 1
    engine: Sequence[str] = SIM

    def pods(self) -> list[str]:
        counts = {
            "worker": self.num_replicas,
            "tokenizer": self.num_tokenizers,
            "scheduler": self.num_replicas,
            "gateway": self.num_gateways,
        }
        return [f"{role}-{i}" for role, count in counts.items() for i in range(count)]


@contextmanager
def running_mesh(layout: Layout) -> Iterator[Mesh]:
    """Run a mesh that is whole at first; end it in any case."""
    mesh = Mesh(layout)
    try:
        for pod in mesh.pods.values():
            pod.start()
        mesh.wait_whole()
        yield mesh
    finally:
        mesh.close()


class Mesh:
    """All pods, by name."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.folder = Path(tempfile.mkdtemp(prefix="pw-mesh-"))
        self.authority = Authority()
        self._network, self._lock = _own_network()
        names = ["client", *layout.pods()]
        self._ips = {name: f"{self._network}.{number}" for number, name in enumerate(names, 1)}
        self.pods = {name: self._pod(name) for name in names}

    def add_client(self, name: str, **more: Any) -> None:
        """Start one more pod of an application, whose sidecar is set otherwise."""
        self._ips[name] = f"{self._network}.{len(self._ips) + 1}"
        self.pods[name] = self._pod(name, **more)
        self.pods[name].start()
        self.wait(self.pods[name].ready, name)

    def __getitem__(self, name: str) -> Pod:
        return self.pods[name]

    @property
    def grpc_target(self) -> str:
        """Where an application in the client's pod finds the public gRPC API."""
        return f"{self['client'].ip}:50050"

    @property
    def http_url(self) -> str:
        """Where an application in the client's pod finds the HTTP API, without /v1."""
        return f"http://{self['client'].ip}:8000"

    def role(self, role: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.role == role]

    def direct(self, name: str, port: int) -> str:
        """A port of a service past its sidecar, for looking at it."""
        return f"{self[name].ip}:{port}"

    def render(self, name: str, **more: Any) -> Path:
        """Write the sidecar's configuration of a pod; return its folder."""
        folder = self.folder / name
        role = name.partition("-")[0]
        peers = {each: [pod for pod in self._ips if pod.startswith(each)] for each in _MODULES}
        sidecar = render.Sidecar(
            role=role,
            peers={each: [self._ips[pod] for pod in pods] for each, pods in peers.items()},
            **{"app_host": self._ips[name], "bind": self._ips[name], **more},
            certificates=str(self.authority.issue(role, folder / "certificates")),
            config_dir=str(folder),
        )
        for file, text in sidecar.files().items():
            (folder / file).write_text(text)
        return folder

    def wait_whole(self) -> None:
        """Wait until everything serves and every gateway has every scheduler."""
        for pod in self.pods.values():
            self.wait(pod.ready, f"the sidecar of {pod.name}")
        for name in self.layout.pods():
            self.wait(lambda name=name: self.serves(name), name)
        for gateway in self.role("gateway"):
            for number in range(self.layout.num_replicas):
                self.wait(
                    lambda gateway=gateway, number=number: self.num_streams(gateway, number) > 0,
                    f"scheduler {number} at {gateway.name}",
                )
        for cluster in ("inference", "openai"):
            self.wait(
                lambda cluster=cluster: self.num_healthy(cluster) == self.layout.num_gateways,
                f"{cluster} at the client",
            )

    def serves(self, name: str) -> bool:
        """Whether a service says that it is ready."""

        pod = self[name]
        port = {"gateway": 50050, "tokenizer": 50051, "scheduler": 50052, "worker": 50053}[pod.role]
        return asyncio.run(check(f"{pod.ip}:{port}", _SERVICES[pod.role])).serving

    def num_streams(self, gateway: Pod, scheduler: int) -> int:
        """Calls that a gateway has open on a scheduler: its EngineStream, and watchers."""
        name = f"cluster.scheduler-{scheduler}.upstream_rq_active"
        return gateway.stats(name).get(name, 0)

    def num_healthy(self, cluster: str) -> int:
        """Replicas of a service that the client's sidecar would call."""
        name = f"cluster.{cluster}.membership_healthy"
        return self["client"].stats(name).get(name, 0)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while not condition():
            dead = [pod.name for pod in self.pods.values() if pod.is_dead()]
            assert not dead, f"{dead} ended:\n{self._logs()}"
            assert time.monotonic() < deadline, f"{what} did not come:\n{self._logs()}"
            time.sleep(_POLL_S)  # Envoy's figures can only be asked for

    def drain(self, name: str) -> None:
        """End a service as a cluster does: it finishes first, its sidecar after it."""
        pod = self[name]
        assert pod.app is not None and pod.sidecar is not None
        for process in (pod.app, pod.sidecar):
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_TIMEOUT_S)
        pod.app = pod.sidecar = None

    def kill_app(self, name: str) -> None:
        """Kill a service, not its sidecar."""
        app, self[name].app = self[name].app, None
        assert app is not None
        app.kill()
        app.wait()

    def close(self) -> None:
        for pod in self.pods.values():
            pod.end()
        self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _logs(self) -> str:
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in paths)

    def _pod(self, name: str, **more: Any) -> Pod:
        (self.folder / name).mkdir(parents=True)
        role = name.partition("-")[0]
        command = None
        if role in _MODULES:
            flags = getattr(self, f"_{role}_flags")(self._ips[name])
            common = ["--metrics-port=0", "--log-level=info"]
            command = [sys.executable, "-m", _MODULES[role], *common, *flags]
        return Pod(name, self._ips[name], self.render(name, **more), command)

    def _gateway_flags(self, ip: str) -> list[str]:
        schedulers = [f"{ip}:{50052 + 100 * n}" for n in range(self.layout.num_replicas)]
        return [
            f"--host={ip}",
            f"--admin-listen={ip}:50060",
            f"--schedulers={','.join(schedulers)}",
            f"--tokenizers={ip}:50051",
        ]

    def _tokenizer_flags(self, ip: str) -> list[str]:
        return [f"--listen={ip}:50051", f"--admin-listen={ip}:50061"]

    def _scheduler_flags(self, ip: str) -> list[str]:
        workers = [f"{ip}:{50053 + 100 * n}" for n in range(self.layout.num_replicas)]
        return [
            f"--listen={ip}:50052",
            f"--admin-listen={ip}:50062",
            f"--workers={','.join(workers)}",
            f"--tokenizers={ip}:50051",
            *self.layout.engine,
        ]

    def _worker_flags(self, ip: str) -> list[str]:
        return [f"--listen={ip}:50053", f"--admin-listen={ip}:50063"]


def _own_network() -> tuple[str, socket.socket]:
    """Return the start of addresses that no other mesh on this machine has, and what keeps them."""
    while True:
        network = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}"
        try:
            return network, socket.create_server((f"{network}.254", 15999))
        except OSError:
            continue
