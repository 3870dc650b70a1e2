"""Settings of a stack on one machine: its own, and those that services take over.

`pagewire.cli.stack` makes command lines of them, `pagewire.cli.addresses` addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pagewire.engine_config import EngineConfig

_MIB = 1024 * 1024


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
    gateway `smg`; it asks for no key. 0: any free one; none: it is not served so. Further replicas
    have the ports after it."""
    data_parallel_size: int = 1
    """Replicas of the engine behind the gateway, each a scheduler with workers of its own. They
    share the cores of a CPU; on GPUs each takes the next ones."""
    internal_transport: Literal["uds", "tcp"] = "uds"
    """How services reach each other: Unix sockets in a private directory, or loopback ports."""
    metrics_port_base: int = 0
    """First of the ports for Prometheus metrics (gateway, tokenizer, scheduler, then the workers);
    0: only /metrics on the HTTP port."""
    drain_timeout_s: float = field(default=30.0, metadata={"flag": "--drain-timeout"})
    """Seconds that running requests get to finish after the first Ctrl-C or SIGTERM."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Log level of the services."""
    otlp_traces_endpoint: str | None = None
    """Where OpenTelemetry spans of requests go, by OTLP over gRPC, such as http://localhost:4317;
    none: nowhere."""
    log_dir: Path | None = None
    """Folder for one log file a service with all that it logs."""
    profiler_dir: Path | None = None
    """Folder for the traces of `pagewire profile`; none: profiles are refused."""
    verbose: bool = False
    """Show all that the services log, not only warnings and progress."""

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port", "vllm_grpc_port", "metrics_port_base"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise ValueError(name, value, "must be between 0 and 65535")
        if 0 < self.http_port == self.grpc_port:
            raise ValueError("grpc_port", self.grpc_port, "must differ from the HTTP port")
        if not 1 <= self.data_parallel_size <= 64:
            raise ValueError("data_parallel_size", self.data_parallel_size, "must be 1 to 64")
        if first := self.vllm_grpc_port:
            ports = range(first, first + self.data_parallel_size)
            if self.http_port in ports or self.grpc_port in ports:
                raise ValueError("vllm_grpc_port", first, "must be a port of its own")
            if ports[-1] > 65535:
                raise ValueError("vllm_grpc_port", first, "leaves too few ports for all replicas")
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
    enable_tokenizer_info_endpoint: bool = False
    """Serve GET /tokenizer_info: the tokenizer's configuration with its chat template."""
    trace_requests: int = 256
    """Traces kept of the last requests; 0: none, and no request is followed through the engines."""
    trace_slowest: int = 32
    """Traces kept of the slowest requests of the last hour besides."""
    trace_readers: tuple[str, ...] = ()
    """Clients (names of their keys) that may read every client's traces, and figures in /metrics of
    the HTTP API; others read their own."""
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
