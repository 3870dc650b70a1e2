"""Streams of gateways to a running scheduler."""

import grpc
import pytest

from pagewire.kit.errors import PagewireError, from_rpc_error
from tests.scheduler_svc.gateway_client import GatewayClient

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


async def connect(stack, **options):
    gateway = GatewayClient(stack.stub, **options)
    await gateway.open()
    return gateway


async def end_of(gateway) -> PagewireError:
    """The error that ends a stream."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        while True:
            await gateway.read()
    return from_rpc_error(error.value)
