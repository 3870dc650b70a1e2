from __future__ import annotations

from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.server import ServerConfig
from pagewire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.tokenizer_svc.factories import byte_level_gguf
from tokenizer_svc.config import TokenizerServiceConfig
from tokenizer_svc.server import SERVICE_NAME, TokenizerServer

SERVER = ServerConfig(listen="127.0.0.1:0", drain_timeout_s=0.0)


async def test_a_started_service_is_ready(tmp_path: Path) -> None:
    path = byte_level_gguf().write(tmp_path / "model.gguf")
    config = TokenizerServiceConfig(
        model=str(path), cache_dir=str(tmp_path / "cache"), server=SERVER
    )
    server = TokenizerServer(config)
    await server.start()
    async with open_channel(server.server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        info = await stub.GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest())
        assert info.has_chat_template
    await server.stop()


async def test_a_model_that_is_not_there_fails_the_start() -> None:
    server = TokenizerServer(TokenizerServiceConfig(model="/nowhere", server=SERVER))
    with pytest.raises(FailedPreconditionError, match="/nowhere"):
        await server.start()
    assert not server.server.is_serving
    await server.stop()
    await server.stop()
