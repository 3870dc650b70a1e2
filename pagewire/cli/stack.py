"""What a stack on one machine consists of: settings, addresses, and the command lines.

One gateway, one tokenizer, one scheduler, and a worker a rank.

Pure planning: it binds no port but to find a free one, and starts nothing. `pagewire.cli.serve`
hands the result to the supervisor.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pagewire.cli.child import ChildSpec
from pagewire.engine_config import EngineConfig
from pagewire.kit.config import ConfigError, to_argv

MODULES = {
    "gateway": "gateway",
    "scheduler": "scheduler_svc",
    "worker": "worker_svc",
    "tokenizer": "tokenizer_svc",
}
_MIB = 1024 * 1024
_TLS_PREFIX = "PAGEWIRE_TLS_"
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
# Peer port, admin port, place after --metrics-port-base: the table of the README.
_PORTS = {
    "gateway": (50050, 50060, 0),
    "tokenizer": (50051, 50061, 1),
    "scheduler": (50052, 50062, 2),
    "worker": (50053, 50063, 3),
}


@dataclass(frozen=True, slots=True)
class StackConfig:
    """The stack on this machine."""

    host: str = "127.0.0.1"
    """Address on which clients reach the HTTP and the gRPC API."""
    http_port: int = field(default=8000, metadata={"aliases": ("--port",)})
    """Port of the OpenAI-compatible HTTP API; 0: any free one."""
    grpc_port: int = 50050
    """Port of the public gRPC API; 0: any free one."""
    grpc_transport: Literal["tcp", "uds"] = "tcp"
    """`uds`: the public gRPC API is on a Unix socket in a private directory, in place of its port;
    the ready line names it."""
    vllm_grpc_port: int | None = None
    """Port of 127.0.0.1 on which the engine is served as vllm.grpc.engine.VllmEngine too, for the
    gateway `smg`; it asks for no key. 0: any free one; none: it is not served so."""
    internal_transport: Literal["uds", "tcp"] = "uds"
    """How services reach each other: Unix sockets in a private directory, or loopback ports."""
    metrics_port_base: int = 0
    """First of the ports for Prometheus metrics (gateway, tokenizer, scheduler, then the workers);
    0: only /metrics on the HTTP port."""
    drain_timeout_s: float = field(default=30.0, metadata={"flag": "--drain-timeout"})
    """Seconds that running requests get to finish after the first Ctrl-C or SIGTERM."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Log level of the services."""
    log_dir: Path | None = None
    """Folder for one log file a service with all that it logs."""
    verbose: bool = False
    """Show all that the services log, not only warnings and progress."""

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port", "vllm_grpc_port", "metrics_port_base"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise ValueError(name, value, "must be between 0 and 65535")
        if 0 < self.http_port == self.grpc_port:
            raise ValueError("grpc_port", self.grpc_port, "must differ from the HTTP port")
        if self.vllm_grpc_port and self.vllm_grpc_port in (self.http_port, self.grpc_port):
            raise ValueError("vllm_grpc_port", self.vllm_grpc_port, "must be a port of its own")
        if self.drain_timeout_s < 0:
            raise ValueError("drain_timeout_s", self.drain_timeout_s, "must not be negative")


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What clients may send, and how long they wait."""

    max_prompt_bytes: int = 4 * _MIB
    """Longest prompt in UTF-8 bytes; longer ones are refused before they are tokenized."""
    max_body_bytes: int = 8 * _MIB
    """Longest HTTP body; longer ones get 413."""
    max_outputs_per_request: int = 256
    """Most outputs of one request: prompts times n."""
    max_live_outputs: int = 8192
    """Most outputs generated at a time over all clients; more are refused with 429."""
    max_header_bytes: int = 64 * 1024
    """Longest head of an HTTP request: its line and headers; longer ones get 431."""
    max_connections: int = 16384
    """Most HTTP connections at a time, requests on more get 503; as many gRPC connections."""
    max_buffered_output_bytes: int = 4 * _MIB
    """Output that waits for one slow client; a request that exceeds it is ended."""
    max_stored_responses: int = 1024
    """Most finished responses of /v1/responses that are kept; the oldest go first."""
    max_stored_response_bytes: int = 64 * _MIB
    """Bytes of the finished responses that are kept, their conversations included."""
    request_timeout_s: float = field(default=3600.0, metadata={"flag": "--request-timeout"})
    """Seconds until a request is ended, unless its client set a shorter deadline."""
    recovery_timeout_s: float = field(default=120.0, metadata={"flag": "--recovery-timeout"})
    """Seconds that live requests wait for a lost scheduler or tokenizer to come back."""
    tokenizer_timeout_s: float = field(default=30.0, metadata={"flag": "--tokenizer-timeout"})
    """Seconds for one call to the tokenizer."""
    connect_timeout_s: float = field(default=5.0, metadata={"flag": "--connect-timeout"})
    """Seconds for the first answer of a scheduler or tokenizer when connecting."""
    header_timeout_s: float = field(default=20.0, metadata={"flag": "--header-timeout"})
    """Seconds for a client to send the whole head of an HTTP request."""
    body_timeout_s: float = field(default=60.0, metadata={"flag": "--body-timeout"})
    """Seconds for a client to send its whole HTTP body."""
    send_timeout_s: float = field(default=60.0, metadata={"flag": "--send-timeout"})
    """Seconds that output may wait for a client that reads nothing, until its request is ended."""
    stream_keep_alive_s: float = field(default=15.0, metadata={"flag": "--stream-keep-alive"})
    """Seconds without an event until an HTTP stream gets a comment, so that proxies keep it."""
    routing_policy: Literal["prefix-aware", "least-loaded", "round-robin"] = "prefix-aware"
    """Which scheduler a request goes to. prefix-aware: the one that has most of its prompt cached,
    unless others have much less to do; least-loaded; round-robin."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """Sampling parameters of requests that name none. auto: those that the model's own generation
    config recommends; vllm: none of them, so temperature 1 and all else off."""
    gateway_id: str | None = None
    """Name of this gateway, unique among those of a scheduler; none: a random one."""
    api_key_file: Path | None = None
    """File with more keys, one NAME=SECRET a line, read at the start."""
    max_requests_per_minute: int | None = None
    """Most requests a minute of one client (one name of a key); more get 429. None: no limit."""
    max_tokens_per_minute: int | None = None
    """Most tokens a minute of one client, of prompts and outputs; a client over it gets 429."""
    max_concurrent_requests: int | None = None
    """Most requests of one client at a time; more get 429. None: no limit."""
    ssl_certfile: Path | None = None
    """PEM file with the certificate that clients see, and those between it and its authority."""
    ssl_keyfile: Path | None = None
    """PEM file with the private key of --ssl-certfile, without a passphrase."""
    ssl_ca_certs: Path | None = None
    """PEM file with authorities; with it clients must show a certificate of one of them."""
    allowed_origins: tuple[str, ...] = ("*",)
    """Origins such as https://chat.example; *: all, empty: none."""
    allowed_methods: tuple[str, ...] = ("*",)
    """Methods that such pages may use."""
    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that such pages may send."""
    allow_credentials: bool = False
    """Let such pages send cookies and HTTP authentication that the browser holds."""


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """How the model's text is read: tool calls and reasoning."""

    enable_auto_tool_choice: bool = True
    """Let the model choose whether it calls tools (tool_choice auto)."""
    tool_call_parser: Literal[
        "auto",
        "hermes",
        "json",
        "llama3_json",
        "llama4_json",
        "llama4_pythonic",
        "mistral",
        "pythonic",
    ] = "auto"
    """Format in which the model calls tools; auto: as its chat template shows."""
    reasoning_parser: Literal["none", "deepseek_r1", "qwen3"] = "none"
    """How the model marks its reasoning, which is then told apart from the answer."""


@dataclass(frozen=True, slots=True)
class TokenizerOptions:
    """What the tokenizer service takes over."""

    tokenizer: str | None = None
    """Tokenizer in place of the model's own, in the same forms."""
    chat_template: str | None = None
    """File with a Jinja chat template in place of the model's own."""
    trust_request_chat_template: bool = False
    """Let requests bring their own chat template (it runs in a sandbox with limits)."""


@dataclass(frozen=True, slots=True)
class SecretOptions:
    """Authentication."""

    api_key: tuple[str, ...] = field(default=(), repr=False, metadata={"secret": True})
    """Keys of which clients must send one, as NAME=SECRET or SECRET; none: no authentication.
    Better in the environment or a file than on a command line, which everybody may read."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Run a whole stack on this machine: gateway, tokenizer, scheduler and worker."""

    stack: StackConfig = field(default_factory=StackConfig)
    gateway: GatewayOptions = field(default_factory=GatewayOptions)
    messages: MessageOptions = field(default_factory=MessageOptions)
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    secrets: SecretOptions = field(default_factory=SecretOptions)
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where everything listens."""

    http: str
    grpc: str
    listen: Mapping[str, str]
    """By child, without the gateway: what peers connect to."""
    admin_listen: Mapping[str, str]
    """By child."""
    vllm_grpc: str | None = None
    """Of the engine as VllmEngine."""
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
    listen, admin_listen = {}, {}
    for child in _children(num_workers):
        port, admin_port = (base + child.rank for base in _PORTS[child.service][:2])
        if config.internal_transport == "uds":
            listen[child.name] = f"unix:{runtime_dir / child.name}.sock"
            admin_listen[child.name] = f"unix:{runtime_dir / child.name}-admin.sock"
        else:
            listen[child.name] = f"127.0.0.1:{_free_port('127.0.0.1', port)}"
            admin_listen[child.name] = f"127.0.0.1:{_free_port('127.0.0.1', admin_port)}"
    del listen["gateway"]  # its peers are the clients
    host = f"[{config.host}]" if ":" in config.host else config.host
    if config.grpc_transport == "uds":
        grpc = f"unix:{runtime_dir / 'gateway'}.sock"
    else:
        grpc = f"{host}:{_public_port(config.host, config.grpc_port, '--grpc-port')}"
    vllm_grpc = None
    if config.vllm_grpc_port is not None:
        port = _public_port("127.0.0.1", config.vllm_grpc_port, "--vllm-grpc-port")
        vllm_grpc = f"127.0.0.1:{port}"
    return Addresses(f"{host}:{http_port}", grpc, listen, admin_listen, vllm_grpc)


def plan_children(
    config: ServeConfig, addresses: Addresses, environment: Mapping[str, str]
) -> list[ChildSpec]:
    """Return the children in the order in which they are drained.

    Args:
        config: The whole configuration; the scheduler gets the engine's part of it.
        addresses: See `choose_addresses`.
        environment: Of the children; they read settings from it too, so flags must win over it.
    """
    model = config.engine.model.model
    # Both resolve the model for themselves, so both must ask for the same revision of it.
    revision = config.engine.load.revision
    children = _children(config.engine.parallel.world_size)
    workers = [addresses.listen[child.name] for child in children if child.service == "worker"]
    own = {
        "gateway": [
            f"--host={config.stack.host}",
            f"--http-port={addresses.http.rpartition(':')[2]}",
            _grpc_flag(addresses.grpc),
            f"--schedulers={addresses.listen['scheduler']}",
            f"--tokenizers={addresses.listen['tokenizer']}",
            *to_argv(config.gateway, env=environment),
            *to_argv(config.messages, env=environment),
        ],
        "scheduler": [
            f"--workers={','.join(workers)}",
            f"--tokenizers={addresses.listen['tokenizer']}",
            *([f"--vllm-grpc-listen={addresses.vllm_grpc}"] if addresses.vllm_grpc else []),
            *to_argv(config.engine, env=environment),
        ],
        "worker": [],
        "tokenizer": [
            f"--model={model}",
            *([f"--revision={revision}"] if revision is not None else []),
            *to_argv(config.tokenizer, env=environment),
        ],
    }
    return [
        ChildSpec(
            child.name,
            (
                *_python(child.service),
                *_common(child, config.stack, addresses),
                *own[child.service],
            ),
        )
        for child in children
    ]


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


def reachable(address: str) -> str:
    """Return an address to connect to: a wildcard address becomes loopback."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK.get(host, host)}:{port}"


@dataclass(frozen=True, slots=True)
class _Child:
    """A process of the stack."""

    name: str
    service: str
    rank: int = 0
    """Of a worker."""


def _children(num_workers: int) -> list[_Child]:
    """The processes, in the order in which they are drained."""
    workers = [_Child("worker", "worker")]
    if num_workers > 1:
        workers = [_Child(f"worker-{rank}", "worker", rank) for rank in range(num_workers)]
    before = [_Child("gateway", "gateway"), _Child("scheduler", "scheduler")]
    return [*before, *workers, _Child("tokenizer", "tokenizer")]


def _python(service: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", MODULES[service])


def _common(child: _Child, config: StackConfig, addresses: Addresses) -> list[str]:
    """Return the flags that every service has."""
    base, place = config.metrics_port_base, _PORTS[child.service][2] + child.rank
    flags = [
        f"--admin-listen={addresses.admin_listen[child.name]}",
        f"--metrics-port={base + place if base else 0}",
        f"--drain-timeout={config.drain_timeout_s!r}",
        f"--log-level={config.log_level}",
    ]
    if child.name in addresses.listen:
        flags.insert(0, f"--listen={addresses.listen[child.name]}")
    return flags


def _public_port(host: str, port: int, flag: str) -> int:
    if (found := _bindable(host, port)) is not None:
        return found
    if port == 0:
        raise ConfigError(f"--host {host}: is not an address of this machine")
    raise ConfigError(
        f"port {port} of {host} is in use, or no address of this machine; "
        f"choose another one with {flag}"
    )


def _grpc_flag(address: str) -> str:
    """Return the gateway's flag for the address of the public gRPC API."""
    if address.startswith("unix:"):
        return f"--grpc-listen={address}"
    return f"--grpc-port={address.rpartition(':')[2]}"


def _free_port(host: str, wanted: int) -> int:
    """Return the wanted port if it is free, else any free one."""
    port = _bindable(host, wanted) or _bindable(host, 0)
    if port is None:
        raise ConfigError(f"no port of {host} is free")
    return port


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
