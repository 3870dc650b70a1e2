"""A stack of several of each, as processes on Unix sockets, whose dead are started again.

It plans addresses and command lines, runs a supervisor, and lets a test send signals to single
processes. Links named in `proxied` go through a `LinkProxy`, which can disturb them. What the
faults are, and what must come out, is others' business.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from pagewire.cli.child import ChildSpec
from pagewire.cli.ready import wait_serving
from pagewire.cli.supervisor import RestartPolicy, Supervisor
from tests.chaos.proxy import LinkProxy

ROOT = Path(__file__).resolve().parents[2]
WAIT_TIMEOUT_S = 300.0
"""Of anything that must come: a machine that is shared may be very slow."""
MODULES = {
    "gateway": "gateway",
    "tokenizer": "tokenizer_svc",
    "scheduler": "scheduler_svc",
}
SERVICE_NAMES = {
    "gateway": "pagewire.v1.InferenceService",
    "tokenizer": "pagewire.v1.TokenizerService",
    "scheduler": "pagewire.v1.SchedulerService",
    "worker": "pagewire.v1.WorkerService",
}
SIM = ("--model=smollm2", "--device=sim")
_NO_FILES = ("sh", "-c", 'ulimit -f 0 && exec "$0" "$@"')
# Whatever dies is started again at once: the stack's patience is not what is tested.
_POLICY = RestartPolicy(max_deaths=1_000_000, first_delay_s=0.1, max_delay_s=0.5)


@dataclass(frozen=True)
class Layout:
    """How many of each, and what they are told."""

    num_replicas: int = 2
    num_tokenizers: int = 2
    num_gateways: int = 1
    num_standby_workers: int = 0
    """Workers that every scheduler may claim besides its own."""
    engine: Sequence[str] = (*SIM, "--sim-step-time-us=20000")
    """Flags of the schedulers."""
    scheduler: Sequence[str] = ()
    """Flags of the schedulers besides those of the engine."""
    tokenizer: Sequence[str] = ()
    """Flags of the tokenizers."""
    has_full_disk: bool = False
    """No process can write a byte into a file."""
    worker_module: str = "worker_svc"
    drain_timeout_s: float = 30.0
    proxied: Collection[tuple[str, str]] = ()
    """Links (from, to) that go through a proxy, such as ("gateway-0", "scheduler-1")."""

    def names(self, service: str) -> list[str]:
        """The processes of a service."""
        num_workers = self.num_replicas + self.num_standby_workers
        counts = {
            "gateway": self.num_gateways,
            "tokenizer": self.num_tokenizers,
            "scheduler": self.num_replicas,
            "worker": num_workers,
        }
        return [f"{service}-{number}" for number in range(counts[service])]

    @property
    def all_names(self) -> list[str]:
        """Every process, in the order in which they are drained."""
        services = ("gateway", "scheduler", "worker", "tokenizer")
        return [name for service in services for name in self.names(service)]


@asynccontextmanager
async def chaos_stack(layout: Layout) -> AsyncIterator[ChaosStack]:
    """Run a stack that is whole at first; end it in any case."""
    stack = ChaosStack(layout)
    try:
        await stack.start()
        yield stack
    finally:
        await stack.close()


class ChaosStack:
    """The processes; owned by one event loop, on the main thread."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        # Short: the path of a socket has at most 107 bytes.
        self.base = Path(tempfile.mkdtemp(prefix="pwc-"))
        self.proxies = {
            link: LinkProxy(self._socket(link[1]).removeprefix("unix:")) for link in layout.proxied
        }
        self._http_ports = {name: _free_port() for name in layout.names("gateway")}
        self._log = (self.base / "log.txt").open("w")
        self._supervisor: Supervisor | None = None
        self._said = asyncio.Event()
        self._listeners: list[tuple[tuple[str, ...], asyncio.Future[None]]] = []

    async def start(self) -> None:
        """Start everything and wait until it serves."""
        for proxy in self.proxies.values():
            await proxy.start()
        specs = [self._spec(name) for name in self.layout.all_names]
        self._supervisor = Supervisor(specs, _environment(self.base), self, policy=_POLICY)
        # What a process finds wrong at its start may be what was just killed beside it.
        self._supervisor.mark_up()
        self._supervisor.start()
        await self.wait_whole()

    async def close(self) -> None:
        """End everything, also what is stopped; leave nothing."""
        if self._supervisor is not None:
            self._supervisor.kill()
            await self._supervisor.stop(WAIT_TIMEOUT_S)
        for proxy in self.proxies.values():
            await proxy.close()
        self._log.close()
        shutil.rmtree(self.base, ignore_errors=True)

    def target(self, name: str) -> str:
        """Where a process listens for its peers; a gateway for its clients, over gRPC."""
        return self._socket(name)

    def http_url(self, gateway: str) -> str:
        """The HTTP API of a gateway, without /v1."""
        return f"http://127.0.0.1:{self._http_ports[gateway]}"

    def pid(self, name: str) -> int | None:
        """Process id; None while it is dead."""
        assert self._supervisor is not None
        return self._supervisor.pid(name)

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send a signal to a process that lives; return its process id."""
        pid = self.pid(name)
        assert pid is not None, f"{name} is dead"
        os.kill(pid, number)
        return pid

    async def wait_replaced(self, name: str, pid: int) -> None:
        """Wait until another process has the place of a dead one, and serves."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while self.pid(name) in (None, pid):
                self._said.clear()
                await self._said.wait()
        await self.wait_serving(name)

    async def wait_said(self, *texts: str) -> None:
        """Wait until a line from now on has one of the texts."""
        heard = asyncio.get_running_loop().create_future()
        self._listeners.append((texts, heard))
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await heard

    async def wait_serving(self, name: str) -> None:
        """Wait until a process serves."""
        service = SERVICE_NAMES[name.partition("-")[0]]
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await wait_serving(self.target(name), service)

    async def wait_whole(self) -> None:
        """Wait until everything serves."""
        await asyncio.gather(*map(self.wait_serving, self.layout.all_names))

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of each process that lives."""
        resident = {}
        for name in self.layout.all_names:
            if (pid := self.pid(name)) is not None:
                with suppress(psutil.NoSuchProcess):  # it has just died
                    resident[name] = psutil.Process(pid).memory_info().rss
        return resident

    def log_text(self) -> str:
        """What all processes have said."""
        self._log.flush()
        return (self.base / "log.txt").read_text()

    # Observer of the supervisor.

    def line(self, child: str, line: str) -> None:
        self._log.write(f"{child}: {line}\n")
        self._said.set()
        for texts, heard in self._listeners:
            if not heard.done() and any(text in line for text in texts):
                heard.set_result(None)
        self._listeners = [each for each in self._listeners if not each[1].done()]

    def restarting(self, child: str, reason: str, delay_s: float) -> None:
        self._log.write(f"{child}: is started again after {reason}\n")

    def _socket(self, name: str) -> str:
        return f"unix:{self.base / name}.sock"

    def _address(self, client: str, server: str) -> str:
        """Where a process finds a peer: at its socket, or at the proxy of their link."""
        proxy = self.proxies.get((client, server))
        return self._socket(server) if proxy is None else proxy.target

    def _addresses(self, client: str, servers: Sequence[str]) -> str:
        return ",".join(self._address(client, server) for server in servers)

    def _spec(self, name: str) -> ChildSpec:
        service = name.partition("-")[0]
        flags = {
            "gateway": self._gateway_flags,
            "scheduler": self._scheduler_flags,
            "worker": lambda name: [f"--listen={self._socket(name)}"],
            "tokenizer": self._tokenizer_flags,
        }[service](name)
        module = self.layout.worker_module if service == "worker" else MODULES[service]
        common = (
            f"--admin-listen={self._socket(f'{name}-admin')}",
            "--metrics-port=0",
            f"--drain-timeout={self.layout.drain_timeout_s}",
        )
        argv = (sys.executable, "-P", "-m", module, *common, *flags)
        return ChildSpec(name, (*_NO_FILES, *argv) if self.layout.has_full_disk else argv)

    def _tokenizer_flags(self, name: str) -> list[str]:
        return [f"--listen={self._socket(name)}", "--model=smollm2", *self.layout.tokenizer]

    def _gateway_flags(self, name: str) -> list[str]:
        return [
            f"--http-port={self._http_ports[name]}",
            f"--grpc-listen={self._socket(name)}",
            f"--gateway-id={name}",
            f"--schedulers={self._addresses(name, self.layout.names('scheduler'))}",
            f"--tokenizers={self._addresses(name, self.layout.names('tokenizer'))}",
        ]

    def _scheduler_flags(self, name: str) -> list[str]:
        number = int(name.partition("-")[2])
        workers = self.layout.names("worker")
        standbys = workers[self.layout.num_replicas :]
        return [
            f"--listen={self._socket(name)}",
            f"--workers={self._addresses(name, [workers[number], *standbys])}",
            f"--tokenizers={self._addresses(name, self.layout.names('tokenizer'))}",
            *self.layout.engine,
            *self.layout.scheduler,
        ]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _environment(base: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAGEWIRE_")}
    return {**kept, "XDG_RUNTIME_DIR": str(base), "PYTHONPATH": str(ROOT)}
