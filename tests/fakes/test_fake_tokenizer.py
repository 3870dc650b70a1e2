"""The fake tokenizer keeps the same contract as the real service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pagewire.kit.channels import open_channel
from pagewire.v1 import tokenizer_pb2_grpc
from tests.fakes.fake_tokenizer import FakeTokenizer
from tests.tokenizer_svc.conformance import *  # noqa: F403
from tests.tokenizer_svc.conformance import Stream


@pytest.fixture
async def fake() -> AsyncIterator[FakeTokenizer]:
    async with FakeTokenizer() as running:
        yield running


@pytest.fixture
async def stub(fake: FakeTokenizer) -> AsyncIterator[Any]:
    async with open_channel(fake.target) as channel:
        yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)


async def test_streams_can_be_lost(fake: FakeTokenizer, stub: Any) -> None:
    stream = Stream(stub)
    await stream.send()
    fake.lose_streams()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
