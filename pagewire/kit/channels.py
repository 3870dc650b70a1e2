"""Client channels: options that every link has, and ids carried in metadata.

`open_channel` gives a channel for a target (`host:port`, `dns:///name:port`, `unix:/path`) that
adds the current request id and trace context to each call, in plain text or by the TLS that it is
given. It adds them around the multicallables: grpc.aio's own client interceptors put a queue and a
task into every stream. It makes no retries of its own and knows no stubs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, cast

import grpc

from pagewire.kit import context
from pagewire.kit.sockets import HOST_PORT
from pagewire.kit.tls import PeerTls

DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024

ChannelOption = tuple[str, int | str]

_TARGET_RULE = "must be host:port, dns:///name:port or unix:/path"


def check_target(target: str, name: str = "target") -> str:
    """Return the target if its form is right.

    Raises:
        ValueError: With (name, value, rule).
    """
    scheme, _, rest = target.partition(":")
    if scheme in ("ipv4", "ipv6", "unix", "unix-abstract"):
        valid = bool(rest.strip("/"))
    else:
        match = HOST_PORT.fullmatch(rest.rpartition("/")[2] if scheme == "dns" else target)
        valid = match is not None and 0 < int(match[2]) < 65536
    if not valid:
        raise ValueError(name, target, _TARGET_RULE)
    return target


def open_channel(
    target: str,
    *,
    tls: PeerTls | None = None,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    health_service: str | None = None,
    options: Sequence[ChannelOption] = (),
) -> grpc.aio.Channel:
    """Open a channel; connecting happens in the background, at the first call.

    Args:
        target: `host:port`, `dns:///name:port` (calls go round all addresses) or `unix:/path`.
        tls: How the connection is secured, unless the target is a unix socket; None: plain text.
        max_message_bytes: Largest message that may be received.
        health_service: With a `dns:///` target, leave out backends whose health service does not
            report this name as SERVING.
        options: More channel arguments; they win over the kit's.
    """
    is_local = target.startswith(("unix:", "unix-abstract:"))
    merged: dict[str, int | str] = {
        "grpc.keepalive_time_ms": 30_000,
        "grpc.keepalive_timeout_ms": 10_000,
        # This ends a silent connection: the bound above alone left it open for a minute more.
        "grpc.http2.ping_timeout_ms": 10_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.max_receive_message_length": max_message_bytes,
        "grpc.max_send_message_length": max_message_bytes,
        # The core backs off up to two minutes by default; a restarted peer is wanted back at once.
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 5000,  # in truth: time that an attempt to connect gets
        # A socket of this machine costs nothing to try; its owner is often just starting.
        "grpc.max_reconnect_backoff_ms": 250 if is_local else 2000,
        "grpc.dns_min_time_between_resolutions_ms": 5000,
        # http_proxy in the environment is meant for the world outside, not for our own links.
        "grpc.enable_http_proxy": 0,
        "grpc.enable_retries": 1,
        "grpc.service_config": _service_config(target, health_service),
    }
    if tls is None or is_local:
        merged.update(options)
        return ContextChannel(
            grpc.aio.insecure_channel(check_target(target), options=list(merged.items()))
        )
    if tls.server_name:
        merged["grpc.ssl_target_name_override"] = tls.server_name
    merged.update(options)
    return ContextChannel(
        grpc.aio.secure_channel(check_target(target), tls.current(), list(merged.items()))
    )


def _service_config(target: str, health_service: str | None) -> str:
    policy = "round_robin" if target.startswith("dns:") else "pick_first"
    config: dict[str, Any] = {"loadBalancingConfig": [{policy: {}}]}
    if health_service is not None:
        config["healthCheckConfig"] = {"serviceName": health_service}
    return json.dumps(config)


class ContextChannel(grpc.aio.Channel):
    """A channel whose calls carry `pagewire.kit.context.outgoing_metadata()`.

    Metadata that the caller gives under the same key wins.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _with_ids(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _with_ids(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _with_ids(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _with_ids(self._channel.stream_stream(*args, **kwargs))

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()


def _with_ids(multicallable: Any) -> Any:
    """Wrap a multicallable so that each call's metadata has the bound ids."""

    def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
        return multicallable(*args, metadata=_merge(metadata), **kwargs)

    return call


def _merge(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    given = cast(tuple[tuple[str, str | bytes], ...], tuple(metadata or ()))
    keys = {key for key, _ in given}
    return given + tuple(pair for pair in context.outgoing_metadata() if pair[0] not in keys)
