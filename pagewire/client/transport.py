"""How clients reach gateways: targets, TLS, keys, and the service config that is shipped.

Used by both clients; it opens no channel itself. Of the service config channels get the load
balancing alone: retries are made by `retrying` and `aio_retrying`.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

import grpc

from pagewire.client.retry_policy import ONE_ATTEMPT, RetryPolicy, read_policies
from pagewire.kit.channels import DEFAULT_MAX_MESSAGE_BYTES, ChannelOption, check_target
from pagewire.v1 import inference_pb2

DEFAULT_ADDRESS = "127.0.0.1:50050"

# A peer that is silent is asked for a sign of life, and is given up if it gives none.
_KEEPALIVE_TIME_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class Tls:
    """How a connection is secured; all of it optional."""

    root_certificates: bytes | None = None
    """PEM of the authorities to trust; None: those that gRPC comes with."""
    private_key: bytes | None = field(default=None, repr=False)
    """PEM of the client's own key, where the server wants one (mTLS)."""
    certificate_chain: bytes | None = None
    """PEM of the client's own certificate, where the server wants one (mTLS)."""
    server_name: str | None = None
    """Name in the server's certificate, where it is not that of the address."""

    @classmethod
    def from_files(
        cls,
        root_certificates: str | Path | None = None,
        private_key: str | Path | None = None,
        certificate_chain: str | Path | None = None,
        server_name: str | None = None,
    ) -> Tls:
        """Read PEM files.

        Raises:
            OSError: One cannot be read.
        """
        paths = (root_certificates, private_key, certificate_chain)
        roots, key, chain = (Path(path).read_bytes() if path else None for path in paths)
        return cls(roots, key, chain, server_name)


@dataclass(frozen=True)
class Endpoint:
    """Where a client connects, and how; checked when it is built."""

    address: str | Sequence[str] = DEFAULT_ADDRESS
    api_key: str | None = field(default=None, repr=False)
    tls: Tls | bool = False
    retry: bool = True
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("api_key: must be printable ASCII")
        _ = self.target

    @cached_property
    def target(self) -> str:
        """What gRPC resolves; calls go round its addresses."""
        if isinstance(self.address, str):
            return _checked(self.address)
        return join_addresses(self.address)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of the channel; None: it is not encrypted."""
        if not self.tls:
            return None
        tls = Tls() if self.tls is True else self.tls
        return grpc.ssl_channel_credentials(
            tls.root_certificates, tls.private_key, tls.certificate_chain
        )

    @property
    def options(self) -> list[ChannelOption]:
        """Of the channel."""
        options: dict[str, int | str] = {
            "grpc.service_config": _load_balancing_config(),
            "grpc.enable_retries": 0,
            "grpc.keepalive_time_ms": _KEEPALIVE_TIME_MS,
            "grpc.keepalive_timeout_ms": _KEEPALIVE_TIMEOUT_MS,
            # Of every ping, a keepalive's too; a minute by default, whatever the line above says.
            "grpc.http2.ping_timeout_ms": _KEEPALIVE_TIMEOUT_MS,
            "grpc.http2.max_pings_without_data": 0,
            "grpc.initial_reconnect_backoff_ms": 100,
            "grpc.max_reconnect_backoff_ms": 2000,
            "grpc.max_receive_message_length": self.max_message_bytes,
            "grpc.max_send_message_length": self.max_message_bytes,
            # A proxy of the environment is meant for the web.
            "grpc.enable_http_proxy": 0,
        }
        if isinstance(self.tls, Tls) and self.tls.server_name:
            options["grpc.ssl_target_name_override"] = self.tls.server_name
        return list(options.items())

    def retry_policy(self, method: str) -> RetryPolicy:
        """Return how a method's calls are tried again, by its name without the service's."""
        return self._retry_policies.get(method, ONE_ATTEMPT)

    @cached_property
    def _retry_policies(self) -> dict[str, RetryPolicy]:
        service = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
        return read_policies(service_config(), service.full_name) if self.retry else {}


def service_config() -> str:
    """Return the service config that is shipped, as JSON: round robin, and what may be retried.

    All of its calls either only read, or fail before anything was generated for the client.
    """
    file = resources.files("pagewire.client") / "service_config.json"
    return file.read_text(encoding="utf-8")


def _load_balancing_config() -> str:
    return json.dumps({"loadBalancingConfig": json.loads(service_config())["loadBalancingConfig"]})


def join_addresses(addresses: Sequence[str]) -> str:
    """Return one target for several addresses.

    Raises:
        ValueError: There is none, or they are not IP addresses of one family with ports: gRPC
            resolves names itself, so several backends under names need one name for all of them.
    """
    if len(addresses) == 1:
        return _checked(addresses[0])
    versions = {_ip_version(address) for address in addresses}
    if versions == {4} or versions == {6}:
        return f"ipv{versions.pop()}:{','.join(_checked(address) for address in addresses)}"
    raise ValueError(
        "address: several addresses must all be IPv4 or all IPv6 addresses with ports; for backends"
        " with names, give one DNS name of them all, as dns:///name:port"
    )


def _checked(address: str) -> str:
    try:
        return check_target(address, "address")
    except ValueError as exc:
        name, value, rule = exc.args
        raise ValueError(f"{name}: {value!r} {rule}") from None


def _ip_version(address: str) -> int | None:
    try:
        return ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).version
    except ValueError:
        return None
