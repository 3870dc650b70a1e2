"""Where everything of a stack listens: fixed before it starts, so that a restart changes nothing.

It binds no port but to find a free one.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pagewire.cli.stack_children import Child, stack_children
from pagewire.cli.stack_config import StackConfig
from pagewire.kit.config import ConfigError

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
# Peer port, admin port: the table of the README.
_PORTS = {
    "gateway": (50050, 50060),
    "tokenizer": (50051, 50061),
    "scheduler": (50052, 50062),
    "worker": (50053, 50063),
}
# Between the ports of one replica and those of the next.
_PORTS_PER_REPLICA = 100
_MAX_TRIES = 100


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where everything listens."""

    http: str
    grpc: str
    listen: Mapping[str, str]
    """By child, without the gateway: what peers connect to."""
    admin_listen: Mapping[str, str]
    """By child."""
    vllm_grpc: tuple[str, ...] = ()
    """Of each replica as VllmEngine, if it is served so."""
    is_https: bool = False

    @property
    def http_url(self) -> str:
        return f"{'https' if self.is_https else 'http'}://{reachable(self.http)}"

    @property
    def grpc_target(self) -> str:
        return reachable(self.grpc)


def choose_addresses(config: StackConfig, runtime_dir: Path, num_workers: int = 1) -> Addresses:
    """Fix every address before anything starts, so that a restarted child has its old one.

    Args:
        config: Of the stack.
        runtime_dir: For sockets.
        num_workers: One a rank.

    Raises:
        ConfigError: A public port is in use.
    """
    http_port = _public_port(config.host, config.http_port, "--http-port")
    listen: dict[str, str] = {}
    admin_listen: dict[str, str] = {}
    first = config.vllm_grpc_port or 0
    public = (http_port, config.grpc_port, *range(first, first + config.data_parallel_size))
    ports = _LoopbackPorts(public)
    for child in stack_children(config.data_parallel_size, num_workers):
        if config.internal_transport == "uds":
            listen[child.name] = f"unix:{runtime_dir / child.name}.sock"
            admin_listen[child.name] = f"unix:{runtime_dir / child.name}-admin.sock"
        else:
            port, admin_port = (base + _place(child) for base in _PORTS[child.service])
            listen[child.name] = ports.take(port)
            admin_listen[child.name] = ports.take(admin_port)
    del listen["gateway"]  # its peers are the clients
    host = f"[{config.host}]" if ":" in config.host else config.host
    if config.grpc_transport == "uds":
        grpc = f"unix:{runtime_dir / 'gateway'}.sock"
    else:
        grpc = f"{host}:{_public_port(config.host, config.grpc_port, '--grpc-port')}"
    return Addresses(f"{host}:{http_port}", grpc, listen, admin_listen, _vllm_grpc(config, ports))


def metrics_ports(config: StackConfig, num_workers: int) -> dict[str, int]:
    """Return the port for Prometheus of each child, 0 for none.

    They follow one another from `metrics_port_base`: gateway, tokenizer, schedulers, workers.
    """
    services = ("gateway", "tokenizer", "scheduler", "worker")
    children = stack_children(config.data_parallel_size, num_workers)
    ordered = sorted(children, key=lambda child: services.index(child.service))
    base = config.metrics_port_base
    return {child.name: base + place if base else 0 for place, child in enumerate(ordered)}


def reachable(address: str) -> str:
    """Return an address to connect to: a wildcard address becomes loopback."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK.get(host, host)}:{port}"


def _public_port(host: str, port: int, flag: str) -> int:
    if (found := _bindable(host, port)) is not None:
        return found
    if port == 0:
        raise ConfigError(f"--host {host}: is not an address of this machine")
    raise ConfigError(
        f"port {port} of {host} is in use, or no address of this machine; "
        f"choose another one with {flag}"
    )


def _place(child: Child) -> int:
    """Return how far its ports are from those of the first of its kind."""
    return _PORTS_PER_REPLICA * child.replica + child.rank


def _vllm_grpc(config: StackConfig, ports: _LoopbackPorts) -> tuple[str, ...]:
    first = config.vllm_grpc_port
    if first is None:
        return ()
    replicas = range(config.data_parallel_size)
    if first == 0:
        return tuple(ports.take(0) for _ in replicas)
    flag = "--vllm-grpc-port"
    return tuple(f"127.0.0.1:{_public_port('127.0.0.1', first + i, flag)}" for i in replicas)


class _LoopbackPorts:
    """Gives out ports that nobody has yet, also none that it gave to a child not started yet."""

    def __init__(self, taken: Iterable[int] = ()) -> None:
        self._taken = set(taken)

    def take(self, wanted: int) -> str:
        """Return the address with the wanted port if it is free, else with any free one."""
        for port in (wanted, *itertools.repeat(0, _MAX_TRIES)):
            found = _bindable("127.0.0.1", port)
            if found is not None and found not in self._taken:
                self._taken.add(found)
                return f"127.0.0.1:{found}"
        raise ConfigError("no port of 127.0.0.1 is free")


def _bindable(host: str, port: int) -> int | None:
    """Return the port that could be bound, None if it could not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
