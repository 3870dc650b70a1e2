"""DNS targets (`dns:///name:port`): one address for each process behind a name.

A gRPC channel to such a target goes round the addresses by itself; whoever must know each of them
(a router, or a claim that is several calls to one process) resolves the name here.
"""

from __future__ import annotations

import asyncio
import socket

_SCHEME = "dns:"


def is_dns_target(target: str) -> bool:
    """Whether the target is a name that stands for any number of addresses."""
    return target.startswith(_SCHEME)


async def resolve(target: str) -> list[str]:
    """Return `host:port` for each address of a DNS target, in the resolver's order.

    It takes as long as the system's resolver does.

    Raises:
        OSError: The name can't be resolved now.
    """
    host, _, port = target.rpartition("/")[2].removeprefix(_SCHEME).rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )
    except UnicodeError as error:
        raise OSError(f"{host} is no name that a host can have") from error
    return list(
        dict.fromkeys(_address(family, sockaddr[0], port) for family, *_, sockaddr in found)
    )


def _address(family: int, host: str | int, port: str) -> str:
    return f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
