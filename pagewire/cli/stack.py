"""What a stack on one machine consists of: the command lines and environments of its processes.

Pure planning: it starts nothing. `pagewire.cli.serve` hands the result to the supervisor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pagewire.cli.addresses import Addresses, metrics_ports
from pagewire.cli.child import ChildSpec
from pagewire.cli.devices import (
    CUDA_VISIBLE_DEVICES,
    devices_of_replica,
    threads_of_worker,
)
from pagewire.cli.stack_children import Child, stack_children
from pagewire.cli.stack_config import ServeConfig, StackConfig
from pagewire.engine_config import EngineConfig
from pagewire.kit.config import to_argv

MODULES = {
    "gateway": "gateway",
    "scheduler": "scheduler_svc",
    "worker": "worker_svc",
    "tokenizer": "tokenizer_svc",
}
_TLS_PREFIX = "PAGEWIRE_TLS_"


def plan_children(
    config: ServeConfig, addresses: Addresses, environment: Mapping[str, str]
) -> list[ChildSpec]:
    """Return the children in the order in which they are drained.

    Args:
        config: The whole configuration; the scheduler gets the engine's part of it.
        addresses: See `choose_addresses`.
        environment: Of the children; they read settings from it too, so flags must win over it.
    """
    engine = config.engine
    num_replicas, num_workers = config.stack.data_parallel_size, engine.parallel.world_size
    children = stack_children(num_replicas, num_workers)
    metrics = metrics_ports(config.stack, num_workers)
    return [
        ChildSpec(
            child.name,
            (
                *_python(child.service),
                *_common(child, config.stack, addresses, metrics[child.name]),
                *_own_flags(child, children, config, addresses, environment),
            ),
            _own_environment(child, config, environment),
        )
        for child in children
    ]


def _own_flags(
    child: Child,
    children: Sequence[Child],
    config: ServeConfig,
    addresses: Addresses,
    environment: Mapping[str, str],
) -> list[str]:
    """Return the flags that only this service has."""
    tokenizers = f"--tokenizers={addresses.listen['tokenizer']}"
    if child.service == "gateway":
        schedulers = [addresses.listen[c.name] for c in children if c.service == "scheduler"]
        return [
            f"--host={config.stack.host}",
            # As the other services' are; whoever may ask the HTTP API has /metrics there.
            "--metrics-host=127.0.0.1",
            f"--http-port={addresses.http.rpartition(':')[2]}",
            _grpc_flag(addresses.grpc),
            f"--schedulers={','.join(schedulers)}",
            tokenizers,
            *to_argv(config.gateway, env=environment),
            *to_argv(config.messages, env=environment),
        ]
    if child.service == "scheduler":
        ranks = [c for c in children if c.service == "worker" and c.replica == child.replica]
        vllm_grpc = addresses.vllm_grpc[child.replica : child.replica + 1]
        return [
            f"--workers={','.join(addresses.listen[rank.name] for rank in ranks)}",
            tokenizers,
            *(f"--vllm-grpc-listen={address}" for address in vllm_grpc),
            *to_argv(_engine_config(config), env=environment),
        ]
    if child.service == "tokenizer":
        # It resolves the model for itself, and must ask for the same tokenizer and revision of it.
        model, revision = config.engine.model, config.engine.load.revision
        return [
            f"--model={model.model}",
            *([f"--tokenizer={model.tokenizer}"] if model.tokenizer is not None else []),
            *([f"--revision={revision}"] if revision is not None else []),
            *to_argv(config.tokenizer, env=environment),
        ]
    profiler_dir = config.stack.profiler_dir
    return [
        f"--replicas-on-machine={config.stack.data_parallel_size}",
        *([f"--profiler-dir={profiler_dir}"] if profiler_dir is not None else []),
        # While the other services start; a simulated device needs none of it.
        *(["--preload"] if config.engine.device.device != "sim" else []),
    ]


def _engine_config(config: ServeConfig) -> EngineConfig:
    """Return the engine's configuration; replicas on one machine's cores divide them."""
    engine, num_replicas = config.engine, config.stack.data_parallel_size
    if num_replicas == 1 or engine.device.num_threads is not None or engine.device.device == "sim":
        return engine
    num_threads = threads_of_worker(num_replicas * engine.parallel.world_size)
    return replace(engine, device=replace(engine.device, num_threads=num_threads))


def _own_environment(
    child: Child, config: ServeConfig, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return what only this child has in its environment."""
    num_replicas = config.stack.data_parallel_size
    if child.service != "worker" or num_replicas == 1:
        return {}
    if config.engine.device.device not in ("auto", "cuda"):
        return {}
    given = environment.get(CUDA_VISIBLE_DEVICES)
    devices = devices_of_replica(
        child.replica, num_replicas, config.engine.parallel.world_size, given
    )
    return {} if devices is None else {CUDA_VISIBLE_DEVICES: devices}


def plan_environment(config: ServeConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the children."""
    # Services of one machine talk over private sockets or loopback: see docs/design/tls.md.
    kept = {key: value for key, value in inherited.items() if not key.startswith(_TLS_PREFIX)}
    environment = {**kept, "PYTHONPATH": _python_path(inherited)}
    if config.secrets.api_key:
        # Not a flag: command lines are for everybody on the machine to read.
        # As JSON: a key may have a comma.
        environment["PAGEWIRE_API_KEY"] = json.dumps(config.secrets.api_key)
    return environment


def _python_path(environment: Mapping[str, str]) -> str:
    """Return PYTHONPATH for children: the place that this package came from, after the user's own.

    Children run with `python -P`, so that a folder named like a service in the working directory
    is not taken for it; a checkout that is not installed is then found through this.
    """
    given = environment.get("PYTHONPATH")
    root = str(Path(__file__).resolve().parents[2])
    return f"{given}{os.pathsep}{root}" if given else root


def _python(service: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", MODULES[service])


def _common(
    child: Child, config: StackConfig, addresses: Addresses, metrics_port: int
) -> list[str]:
    """Return the flags that every service has."""
    flags = [
        f"--admin-listen={addresses.admin_listen[child.name]}",
        f"--metrics-port={metrics_port}",
        f"--drain-timeout={config.drain_timeout_s!r}",
        f"--log-level={config.log_level}",
    ]
    if config.otlp_traces_endpoint is not None:
        flags.append(f"--otlp-traces-endpoint={config.otlp_traces_endpoint}")
    if child.name in addresses.listen:
        flags.insert(0, f"--listen={addresses.listen[child.name]}")
    return flags


def _grpc_flag(address: str) -> str:
    """Return the gateway's flag for the address of the public gRPC API."""
    if address.startswith("unix:"):
        return f"--grpc-listen={address}"
    return f"--grpc-port={address.rpartition(':')[2]}"
