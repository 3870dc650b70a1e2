"""What the service does that neither front door shows."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config import RequestLimits, Timeouts
from gateway.generation import GenerationRequest
from pagewire.kit.errors import InternalError, QueueFullError, ServiceUnavailableError
from tests.fakes.fake_tokenizer import BOS, FakeTokenizer, encode
from tests.gateway.conftest import Gateway, GatewayFactory

ENDLESS = GenerationRequest("", ("abc",), {"max_tokens": 500, "temperature": 0.0})


async def test_a_client_that_does_not_read_has_its_request_aborted(
    run_gateway: GatewayFactory,
) -> None:
    limits = RequestLimits(max_buffered_output_bytes=100)
    async with (
        run_gateway(limits=limits) as gateway,
        gateway.server.service.generate(ENDLESS) as generation,
    ):
        await gateway.scheduler.until(lambda: gateway.scheduler.aborts)
        with pytest.raises(QueueFullError):
            async for _ in generation.outputs():
                pass


async def test_a_lagging_client_gets_merged_outputs_and_misses_nothing(gateway: Gateway) -> None:
    async with gateway.server.service.generate(ENDLESS) as generation:
        # Nobody reads until the engine has finished.
        await gateway.scheduler.until(lambda: gateway.scheduler.num_finished)
        outputs = [output async for batch in generation.outputs() for output in batch]
    assert "".join(output.text for output in outputs) == "cba" * 166 + "cb"
    assert len(outputs) < 500


async def test_an_exception_in_the_front_door_leaves_nothing_running(gateway: Gateway) -> None:
    gateway.scheduler.go_on.clear()
    with pytest.raises(KeyError):
        async with gateway.server.service.generate(ENDLESS):
            raise KeyError
    await gateway.scheduler.until(lambda: gateway.scheduler.aborts)
    await gateway.server.service.wait_idle()


async def test_a_tokenizer_call_is_made_again_after_a_loss(gateway: Gateway) -> None:
    await gateway.tokenizer.__aexit__()
    encoding = asyncio.create_task(gateway.server.service.tokenizer.encode(["ab"]))
    async with FakeTokenizer(listen=gateway.tokenizer.target):
        rows = await encoding
    assert list(rows[0]) == [BOS, *encode("ab")]


async def test_a_request_that_no_message_can_hold_fails_alone(gateway: Gateway) -> None:
    unsendable = GenerationRequest("", ("abc",), {"max_tokens": 2}, cache_salt="\ud800")
    service = gateway.server.service
    with pytest.raises(InternalError):
        async with service.generate(unsendable):
            pass
    async with service.generate(GenerationRequest("", ("abc",), {"max_tokens": 2})) as generation:
        outputs = [output async for batch in generation.outputs() for output in batch]
    assert "".join(output.text for output in outputs) == "cb"
    assert len(gateway.scheduler.opens) == 1


async def test_a_tokenizer_that_stays_away_is_unavailable_before_the_calls_deadline(
    run_gateway: GatewayFactory,
) -> None:
    timeouts = Timeouts(connect_timeout_s=0.3, tokenizer_timeout_s=300.0)
    async with run_gateway(timeouts=timeouts) as gateway:
        await gateway.tokenizer.__aexit__()
        with pytest.raises(ServiceUnavailableError) as caught:
            await gateway.server.service.tokenizer.encode(["ab"])
    assert caught.value.retry_after_s
