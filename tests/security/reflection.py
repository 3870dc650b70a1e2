"""What a gRPC port says of itself by reflection: services, methods, and the types of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Method:
    """One method of a port."""

    path: str
    request: type[Any]
    client_streaming: bool
    server_streaming: bool

    def call(self, channel: grpc.aio.Channel, payloads: Sequence[bytes], **kwargs: Any) -> Any:
        """Start a call with these bytes as its messages; one, unless the client streams."""
        sides = (self.client_streaming, self.server_streaming)
        kind = "_".join("stream" if is_stream else "unary" for is_stream in sides)
        argument = iter(payloads) if self.client_streaming else payloads[0]
        return getattr(channel, kind)(self.path)(argument, **kwargs)


async def service_names(channel: grpc.aio.Channel, metadata: Metadata = ()) -> set[str]:
    """Names of the services on the port."""
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = await _ask(channel, request, metadata)
    return {service.name for service in answer.list_services_response.service}


async def methods(channel: grpc.aio.Channel, metadata: Metadata = ()) -> list[Method]:
    """All methods of all services on the port, in order."""
    pool = descriptor_pool.DescriptorPool()
    found = []
    for name in sorted(await service_names(channel, metadata)):
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
        answer = await _ask(channel, request, metadata)
        for serialized in reversed(answer.file_descriptor_response.file_descriptor_proto):
            pool.Add(descriptor_pb2.FileDescriptorProto.FromString(serialized))  # type: ignore[attr-defined]
        for method in pool.FindServiceByName(name).methods:
            found.append(
                Method(
                    f"/{name}/{method.name}",
                    message_factory.GetMessageClass(method.input_type),
                    method.client_streaming,
                    method.server_streaming,
                )
            )
    return found


async def _ask(channel: grpc.aio.Channel, request: Any, metadata: Metadata) -> Any:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[no-untyped-call]
    call = stub.ServerReflectionInfo(iter([request]), metadata=metadata, timeout=60)
    return await call.read()
