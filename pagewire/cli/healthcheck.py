"""`pagewire healthcheck`: asks one service over grpc.health.v1; for people and container probes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from pagewire.kit.channels import check_target
from pagewire.kit.config import load_config
from pagewire.kit.healthcheck import check
from pagewire.kit.plain_text import one_line
from pagewire.kit.tls import PeerTls, TlsIdentity

_ANY = "any"
_SHORT_NAMES = {
    "gateway": "pagewire.v1.InferenceService",
    "tokenizer": "pagewire.v1.TokenizerService",
    "scheduler": "pagewire.v1.SchedulerService",
    "worker": "pagewire.v1.WorkerService",
    _ANY: "",
}


@dataclass(frozen=True, slots=True)
class HealthcheckConfig:
    """Ask a service whether it serves; exit code 0: yes, 1: no."""

    target: str = "127.0.0.1:50050"
    """Any server of the service: host:port, dns:///name:port or unix:/path."""
    service: str = "gateway"
    """gateway, tokenizer, scheduler, worker, or a full service name: is it ready? `any`: is the
    process alive, whatever it is?"""
    timeout_s: float = field(default=5.0, metadata={"flag": "--timeout"})
    """Seconds for the answer."""
    tls_server_name: str | None = None
    """Name that the server's certificate must have. Default: the role that --service names."""
    tls: TlsIdentity = field(default_factory=TlsIdentity)

    def __post_init__(self) -> None:
        check_target(self.target)
        if self.timeout_s <= 0:
            raise ValueError("timeout_s", self.timeout_s, "must be positive")
        is_role = self.service in _SHORT_NAMES and self.service != _ANY
        if self.tls.is_on and not is_role and self.tls_server_name is None:
            rule = "is needed, because --service names no role"
            raise ValueError("tls_server_name", self.tls_server_name, rule)

    def peer_tls(self) -> PeerTls | None:
        """Return how the connection is secured; None: plain text.

        Raises:
            ConfigError: A file cannot be used.
        """
        return self.tls.server(self.tls_server_name or self.tls.name_of(self.service))


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    config = load_config(HealthcheckConfig, prog="pagewire healthcheck", argv=arguments)
    service = _SHORT_NAMES.get(config.service, config.service)
    status = asyncio.run(check(config.target, service, config.timeout_s, config.peer_tls()))
    # Why a connection failed is the transport's talk, long and without news.
    tell = status.reason and status.status != "UNREACHABLE"
    reason = f": {one_line(status.reason)}" if tell else ""
    stream = sys.stdout if status.serving else sys.stderr
    print(f"{config.target} is {status.status}{reason}", file=stream)
    return 0 if status.serving else 1
