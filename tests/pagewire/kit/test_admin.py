"""SetLogLevel on the admin port of a real server."""

import logging

import grpc
import pytest

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import from_rpc_error
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.v1 import admin_pb2, admin_pb2_grpc


@pytest.fixture
async def stub():
    server = ServiceServer(ServerConfig(admin_listen="127.0.0.1:0"), "x", [])
    await server.start()
    async with open_channel(server.admin_address) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)
    await server.stop(0)


async def test_a_level_is_changed_and_the_one_before_returned(stub):
    logger = logging.getLogger("pagewire.test.admin")
    logger.setLevel(logging.WARNING)
    request = admin_pb2.SetLogLevelRequest(level="debug", logger=logger.name)
    answer = await stub.SetLogLevel(request)
    assert answer.previous_level == "warning"
    assert logger.level == logging.DEBUG


@pytest.mark.parametrize(
    ("level", "logger", "code", "field"),
    [
        ("loud", "", grpc.StatusCode.INVALID_ARGUMENT, "level"),
        ("", "", grpc.StatusCode.INVALID_ARGUMENT, "level"),
        ("debug", "no.such.logger", grpc.StatusCode.NOT_FOUND, "logger"),
    ],
)
async def test_a_wrong_level_or_logger_is_refused(stub, level, logger, code, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level=level, logger=logger))
    assert caught.value.code() is code
    assert from_rpc_error(caught.value).field == field
    assert "no.such.logger" not in logging.root.manager.loggerDict
