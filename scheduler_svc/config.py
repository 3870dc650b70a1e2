"""Settings of a scheduler process: the engine's, the server's, and where its workers are."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagewire.engine_config import EngineConfig
from pagewire.kit.channels import check_target
from pagewire.kit.server import ServerConfig
from pagewire.kit.sockets import check_listen
from pagewire.kit.tls import NEEDS_TLS_RULE

DEFAULT_WORKER = "127.0.0.1:50053"
DEFAULT_TOKENIZER = "127.0.0.1:50051"


def _default_server() -> ServerConfig:
    return ServerConfig(listen="127.0.0.1:50052", admin_listen="127.0.0.1:50062", metrics_port=9102)


@dataclass(frozen=True, slots=True)
class SchedulerServiceConfig:
    """The scheduler service: batching, block tables, prefix cache."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=_default_server)
    workers: tuple[str, ...] = (DEFAULT_WORKER,)
    """Workers to claim: addresses, or dns:///name:port. The first that are free are
    taken, as many as the engine has ranks; the others stand by."""
    tokenizers: tuple[str, ...] = (DEFAULT_TOKENIZER,)
    """Tokenizers to fetch the vocabulary of structured outputs from: host:port, dns:///name:port
    or unix:/path. Needed for little else, so it may be absent or come later; empty: structured
    outputs are not served."""
    vllm_grpc_listen: str | None = None
    """Address at which the engine is served as vllm.grpc.engine.VllmEngine too, for the gateway
    `smg`: host:port (needs the package smg-grpc-proto); none: it is not."""
    vllm_grpc_allowed_sans: tuple[str, ...] = ()
    """Names in the certificates of those who may call --vllm-grpc-listen, with TLS. Default: the
    role smg."""

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("workers", self.workers, "must name at least one worker")
        for target in self.workers:
            check_target(target, "workers")
        num_ranks, is_listed = self.engine.parallel.world_size, not any(map(_is_name, self.workers))
        if is_listed and len(self.workers) < num_ranks:
            rule = f"must name at least {num_ranks} workers, one a rank"
            raise ValueError("workers", self.workers, rule)
        for target in self.tokenizers:
            check_target(target, "tokenizers")
        if self.vllm_grpc_listen is not None:
            check_listen("vllm_grpc_listen", self.vllm_grpc_listen)
        if self.vllm_grpc_allowed_sans and not self.server.tls.is_on:
            names = ",".join(self.vllm_grpc_allowed_sans)
            raise ValueError("vllm_grpc_allowed_sans", names, NEEDS_TLS_RULE)


def _is_name(target: str) -> bool:
    """Whether any number of workers may be behind a target."""
    return target.startswith("dns:")
