"""`pagewire log-level`: changes the log level of a running service, on its admin port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from pagewire.kit.channels import check_target, open_channel
from pagewire.kit.config import OneLineParser, add_arguments, from_namespace
from pagewire.kit.errors import ServiceUnavailableError, from_rpc_error
from pagewire.kit.logs import LEVELS
from pagewire.kit.plain_text import one_line
from pagewire.kit.tls import TlsIdentity
from pagewire.v1 import admin_pb2, admin_pb2_grpc


@dataclass(frozen=True, slots=True)
class LogLevelConfig:
    """Change the log level of a running service until it ends."""

    target: str = "127.0.0.1:50060"
    """Admin address of the service: host:port or unix:/path. The default is a gateway's."""
    logger: str = ""
    """Only this logger and those below it, such as gateway.request; empty: all."""
    timeout_s: float = field(default=5.0, metadata={"flag": "--timeout"})
    """Seconds for the answer."""
    service: str = "gateway"
    """With TLS: what the service is, which its certificate must say: gateway, tokenizer, ..."""
    tls: TlsIdentity = field(default_factory=TlsIdentity)

    def __post_init__(self) -> None:
        check_target(self.target)
        if self.timeout_s <= 0:
            raise ValueError("timeout_s", self.timeout_s, "must be positive")


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = OneLineParser(prog="pagewire log-level", description=LogLevelConfig.__doc__)
    parser.add_argument("level", choices=LEVELS, help="the level from now on")
    add_arguments(parser, LogLevelConfig)
    namespace = parser.parse_args(list(arguments))
    config = from_namespace(LogLevelConfig, namespace)
    previous = asyncio.run(set_log_level(config, namespace.level))
    what = config.logger or "everything"
    print(f"{config.target}: {what} logs at {namespace.level} now ({one_line(previous)} before)")
    return 0


async def set_log_level(config: LogLevelConfig, level: str) -> str:
    """Set the level and return the one before.

    Raises:
        PagewireError: The service cannot be reached, or refuses.
    """
    tls = config.tls.peer(config.service)
    request = admin_pb2.SetLogLevelRequest(level=level, logger=config.logger)
    async with open_channel(config.target, tls=tls) as channel:
        stub: admin_pb2_grpc.AdminServiceAsyncStub = admin_pb2_grpc.AdminServiceStub(channel)
        try:
            answer = await stub.SetLogLevel(request, timeout=config.timeout_s)
        except grpc.aio.AioRpcError as exc:
            if exc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED):
                message = f"{config.target} is no admin address of a service that runs (--target)"
                raise ServiceUnavailableError(message) from exc
            raise from_rpc_error(exc) from exc
    return answer.previous_level
