"""Bytes that are no message, to every method of every service in the contract."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import pytest

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import from_rpc_error
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.v1 import inference_pb2, scheduler_pb2, tokenizer_pb2, worker_pb2
from pagewire.v1 import inference_pb2_grpc as inference_grpc
from pagewire.v1 import scheduler_pb2_grpc as scheduler_grpc
from pagewire.v1 import tokenizer_pb2_grpc as tokenizer_grpc
from pagewire.v1 import worker_pb2_grpc as worker_grpc
from tests.grpc_sending import with_its_status

SERVICES = [
    (module.DESCRIPTOR.services_by_name[name], getattr(stubs, f"add_{name}Servicer_to_server"))
    for module, stubs in (
        (inference_pb2, inference_grpc),
        (tokenizer_pb2, tokenizer_grpc),
        (scheduler_pb2, scheduler_grpc),
        (worker_pb2, worker_grpc),
    )
    for name in module.DESCRIPTOR.services_by_name
]


class ReadsAll:
    """A servicer of any service, whose methods read their requests and do nothing."""

    def __init__(self, service: Any) -> None:
        for method in service.methods:
            handler = self._stream if method.client_streaming else self._unary
            setattr(self, method.name, handler)

    async def _unary(self, request: Any, context: Any) -> None:
        raise AssertionError(request)

    async def _stream(self, requests: Any, context: Any) -> None:
        async for request in requests:
            raise AssertionError(request)


def multicallable(channel: Any, service: Any, method: Any) -> Any:
    sides = (method.client_streaming, method.server_streaming)
    kind = "_".join("stream" if is_stream else "unary" for is_stream in sides)
    return getattr(channel, kind)(f"/{service.full_name}/{method.name}")


async def send_garbage(channel: Any, service: Any, method: Any) -> None:
    garbage = b"\xff\xff\xff"
    requests = iter([garbage]) if method.client_streaming else garbage
    call = multicallable(channel, service, method)(requests)
    _ = [m async for m in call] if method.server_streaming else await call


@pytest.mark.parametrize(("service", "register"), SERVICES, ids=lambda x: getattr(x, "name", ""))
async def test_every_method_answers_bytes_that_are_no_message_as_bad_input(
    service: Any, register: Any
) -> None:
    server = ServiceServer(
        ServerConfig(), service.full_name, [lambda s: register(ReadsAll(service), s)]
    )
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            for method in service.methods:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await with_its_status(partial(send_garbage, channel, service, method))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method.name
                assert from_rpc_error(caught.value).reason == "UNDECODABLE_MESSAGE"
    finally:
        await server.stop(0)
