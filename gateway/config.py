"""Settings of the gateway: where it listens, whom it talks to, and what it accepts.

Engine settings are not here: the gateway asks each scheduler (`GetEngineInfo`) for what it needs.
Built by `__main__` from flags, environment and file; read by the composition root, `server`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway.access.client_limits import ClientLimits
from gateway.access.keys import KeyRing, parse_keys, read_key_file
from gateway.message_config import MessageConfig
from gateway.routing.policies import PolicyName
from gateway.trace.config import TraceConfig
from pagewire.kit.channels import check_target
from pagewire.kit.config import ConfigError
from pagewire.kit.pem import PemPaths
from pagewire.kit.server import ServerConfig
from pagewire.kit.tls import TlsConfig

_MIB = 1024 * 1024

# Deadlines travel as nanoseconds since 1970 in 64 bits; a year is more than any request needs.
_MAX_TIMEOUT_S = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of what clients may send."""

    max_prompt_bytes: int = 4 * _MIB
    """Longest prompt in UTF-8 bytes; longer ones are refused before they are tokenized."""
    max_body_bytes: int = 8 * _MIB
    """Longest HTTP body; longer ones get 413."""
    max_outputs_per_request: int = 256
    """Most outputs of one request: prompts times n."""
    max_live_outputs: int = 8192
    """Most outputs generated at a time over all clients; more are refused with 429."""
    max_buffered_output_bytes: int = 4 * _MIB
    """Output that waits for one slow client; a request that exceeds it is ended."""
    max_header_bytes: int = 64 * 1024
    """Longest head of an HTTP request: its line and headers; longer ones get 431."""
    max_stored_responses: int = 1024
    """Most finished responses of /v1/responses that are kept; the oldest go first."""
    max_stored_response_bytes: int = 64 * _MIB
    """Bytes of the finished responses that are kept, their conversations included."""
    max_connections: int = 16384
    """Most HTTP connections at a time, requests on more get 503; as many gRPC connections."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ValueError(name, getattr(self, name), "must be at least 1")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the gateway waits."""

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

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not 0 < getattr(self, name) <= _MAX_TIMEOUT_S:
                rule = f"must be positive and at most {_MAX_TIMEOUT_S:.0f}"
                raise ValueError(name, getattr(self, name), rule)


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Who may use the API, and how much of it."""

    api_key: tuple[str, ...] = field(default=(), repr=False, metadata={"secret": True})
    """Keys of which clients must send one, as NAME=SECRET or SECRET; none: no authentication.
    Better in the environment or a file than on a command line, which everybody may read."""
    api_key_file: Path | None = None
    """File with more keys, one NAME=SECRET a line, read at the start."""
    max_requests_per_minute: int | None = None
    """Most requests a minute of one client (one name of a key); more get 429. None: no limit."""
    max_tokens_per_minute: int | None = None
    """Most tokens a minute of one client, of prompts and outputs; a client over it gets 429."""
    max_concurrent_requests: int | None = None
    """Most requests of one client at a time; more get 429. None: no limit."""

    def __post_init__(self) -> None:
        names = ("max_requests_per_minute", "max_tokens_per_minute", "max_concurrent_requests")
        for name in names:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(name, value, "must be at least 1, or none")
        try:
            KeyRing(parse_keys(self.api_key))
        except ValueError as exc:
            raise ValueError("api_key", "...", str(exc)) from None

    def limits(self) -> ClientLimits:
        """Return the limits of a client whose key names no others."""
        return ClientLimits(
            self.max_requests_per_minute, self.max_tokens_per_minute, self.max_concurrent_requests
        )

    def keys(self) -> KeyRing:
        """Read all keys.

        Raises:
            ConfigError: The file cannot be used.
        """
        keys = parse_keys(self.api_key)
        if self.api_key_file is None:
            return KeyRing(keys)
        try:
            return KeyRing([*keys, *read_key_file(self.api_key_file)])
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise ConfigError(f"--api-key-file {self.api_key_file}: {reason}") from None


@dataclass(frozen=True, slots=True)
class SslConfig:
    """TLS toward clients, of the HTTP and the gRPC API."""

    ssl_certfile: Path | None = None
    """PEM file with the certificate that clients see, and those between it and its authority."""
    ssl_keyfile: Path | None = None
    """PEM file with the private key of --ssl-certfile, without a passphrase."""
    ssl_ca_certs: Path | None = None
    """PEM file with authorities; with it clients must show a certificate of one of them."""

    def __post_init__(self) -> None:
        rule = "needs --ssl-certfile and --ssl-keyfile"
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            value = getattr(self, name)
            if value is not None and self.paths is None:
                raise ValueError(name, value, rule)

    @property
    def paths(self) -> PemPaths | None:
        """The files; None: plain text."""
        if self.ssl_certfile is None or self.ssl_keyfile is None:
            return None
        flags = ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs")
        return PemPaths(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs, flags)


@dataclass(frozen=True, slots=True)
class CorsConfig:
    """Which pages of other origins may use the HTTP API from a browser."""

    allowed_origins: tuple[str, ...] = ("*",)
    """Origins such as https://chat.example; *: all, empty: none."""
    allowed_methods: tuple[str, ...] = ("*",)
    """Methods that such pages may use."""
    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that such pages may send."""
    allow_credentials: bool = False
    """Let such pages send cookies and HTTP authentication that the browser holds."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The gateway: OpenAI-compatible HTTP and the public gRPC API."""

    host: str = "127.0.0.1"
    """Address that the HTTP and gRPC ports are bound to."""
    http_port: int = field(default=8000, metadata={"aliases": ("--port",)})
    """Port of the HTTP API; 0: any free one."""
    grpc_port: int = 50050
    """Port of the public gRPC API; 0: any free one."""
    grpc_listen: str | None = None
    """Address of the public gRPC API, in place of --host and --grpc-port: host:port or
    unix:/path."""
    admin_listen: str | None = "127.0.0.1:50060"
    """Address of the administration server: host:port or unix:/path."""
    metrics_port: int = 9100
    """Port of Prometheus metrics over HTTP; 0: off. They are also at /metrics of the HTTP API."""
    metrics_host: str = "127.0.0.1"
    """Address that the metrics port is bound to; it asks for no key."""
    schedulers: tuple[str, ...] = ("127.0.0.1:50052",)
    """Schedulers: host:port, dns:///name:port (each address behind the name) or unix:/path."""
    tokenizers: tuple[str, ...] = ("127.0.0.1:50051",)
    """Tokenizers: host:port, dns:///name:port (each address behind the name) or unix:/path; one is
    used at a time."""
    routing_policy: PolicyName = "prefix-aware"
    """Which scheduler a request goes to. prefix-aware: the one that has most of its prompt cached,
    unless others have much less to do; least-loaded; round-robin."""
    enable_tokenizer_info_endpoint: bool = False
    """Serve GET /tokenizer_info: the tokenizer's configuration with its chat template."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """Sampling parameters of requests that name none. auto: those that the model's own generation
    config recommends; vllm: none of them, so temperature 1 and all else off."""
    gateway_id: str | None = None
    """Name of this gateway, unique among those of a scheduler; none: a random one."""
    drain_timeout_s: float = field(default=30.0, metadata={"flag": "--drain-timeout"})
    """Seconds that requests in flight get to finish after SIGTERM."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Log level: debug, info, warning or error."""
    otlp_traces_endpoint: str | None = None
    """Where OpenTelemetry spans of requests go, by OTLP over gRPC, such as http://localhost:4317;
    none: nowhere."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    access: AccessConfig = field(default_factory=AccessConfig)
    ssl: SslConfig = field(default_factory=SslConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    cors: CorsConfig = field(default_factory=CorsConfig)
    messages: MessageConfig = field(default_factory=MessageConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ValueError(name, getattr(self, name), "must be between 0 and 65535")
        for name in ("schedulers", "tokenizers"):
            if not getattr(self, name):
                raise ValueError(name, "", "needs at least one address")
            for target in getattr(self, name):
                check_target(target, name)
        if self.tls.allowed_sans:
            rule = "restricts nobody: clients call a gateway; set --ssl-ca-certs, or --api-key"
            raise ValueError("allowed_sans", ",".join(self.tls.allowed_sans), rule)
        self.server_config()  # its checks are ours

    def server_config(self) -> ServerConfig:
        """Return the part that the gRPC servers of the kit need."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return ServerConfig(
            listen=self.grpc_listen or f"{host}:{self.grpc_port}",
            admin_listen=self.admin_listen,
            metrics_port=self.metrics_port,
            metrics_host=self.metrics_host,
            drain_timeout_s=self.drain_timeout_s,
            log_level=self.log_level,
            otlp_traces_endpoint=self.otlp_traces_endpoint,
            max_connections=self.limits.max_connections,
            tls=self.tls,
        )
