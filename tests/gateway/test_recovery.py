"""Streams that are lost under live requests: nothing changes, repeats or goes missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from gateway.config import Timeouts
from gateway.detokenizer_stream import DetokenizerStream
from gateway.engine_stream import EngineStream
from pagewire.v1 import common_pb2, inference_pb2, scheduler_pb2
from tests.fakes.fake_scheduler import FakeScheduler, expected_output
from tests.fakes.fake_tokenizer import FakeTokenizer
from tests.gateway.conftest import Gateway, GatewayFactory

NUM_TOKENS = 300
PROMPT = list("héllo wörld, ".encode())
TEXT = bytes(expected_output(PROMPT, NUM_TOKENS))


class Reader:
    """Reads one generation; `text` and `token_ids` are what came so far."""

    def __init__(self, gateway: Gateway, **stopping: Any) -> None:
        options = {"max_tokens": NUM_TOKENS} | stopping
        self._call = gateway.grpc.Generate(
            inference_pb2.GenerateRequest(
                token_ids=common_pb2.TokenIds(ids=PROMPT),
                sampling=inference_pb2.SamplingOptions(seed=5),
                stopping=inference_pb2.StoppingOptions(**options),
                response=inference_pb2.ResponseOptions(return_token_ids=True),
            )
        )
        self.text = ""
        self.token_ids: list[int] = []
        self.events: list[Any] = []

    async def until_text(self) -> None:
        while not self.text:
            await self._next()

    def cancel(self) -> None:
        self._call.cancel()

    async def finish(self) -> None:
        while await self._next():
            pass

    async def _next(self) -> bool:
        event = await self._call.read()
        if event is grpc.aio.EOF:
            return False
        self.events.append(event)
        self.text += event.delta.text
        self.token_ids += event.delta.token_ids
        return True


@asynccontextmanager
async def paused(gateway: Gateway, **stopping: Any) -> AsyncIterator[Reader]:
    """A generation in the middle: some text is out, and the engine has stopped making tokens."""
    scheduler = gateway.scheduler
    scheduler.frames_left = 40
    reader = Reader(gateway, **stopping)
    await reader.until_text()
    await scheduler.until(lambda: scheduler.frames_left == 0)
    scheduler.frames_left = None  # for the next stream
    yield reader


def check_complete(reader: Reader) -> None:
    assert reader.token_ids == expected_output(PROMPT, NUM_TOKENS)
    assert reader.text == TEXT.decode("utf-8", "replace")
    usage = reader.events[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), NUM_TOKENS)


async def test_a_lost_engine_stream_changes_nothing_for_the_client(gateway: Gateway) -> None:
    async with paused(gateway) as reader:
        gateway.scheduler.lose_streams()
        await reader.finish()
    check_complete(reader)


async def test_the_request_is_added_again_with_its_output_apart(gateway: Gateway) -> None:
    async with paused(gateway) as reader:
        gateway.scheduler.lose_streams()
        await reader.finish()
    first, again = gateway.scheduler.adds
    assert not first.resumed and again.resumed
    assert list(again.prompt_token_ids) == PROMPT
    assert list(again.output_token_ids) == expected_output(PROMPT, len(again.output_token_ids))
    assert len(again.output_token_ids) > 0
    assert again.sampling_params == first.sampling_params
    assert again.arrival_time_ns == first.arrival_time_ns
    assert again.deadline_ns == first.deadline_ns


async def test_a_new_stream_has_the_same_epoch_and_the_next_generation(gateway: Gateway) -> None:
    async with paused(gateway) as reader:
        gateway.scheduler.lose_streams()
        await reader.finish()
    first, again = gateway.scheduler.opens
    assert (first.gateway_id, first.gateway_epoch) == (again.gateway_id, again.gateway_epoch)
    assert (first.generation, again.generation) == (1, 2)


async def test_a_scheduler_that_starts_again_goes_on(run_gateway: GatewayFactory) -> None:
    async with run_gateway() as gateway, paused(gateway) as reader:
        await gateway.scheduler.__aexit__()
        async with FakeScheduler(listen=gateway.scheduler.target):
            await reader.finish()
    check_complete(reader)


async def test_a_scheduler_that_comes_back_with_another_model_ends_the_request(
    run_gateway: GatewayFactory,
) -> None:
    async with run_gateway() as gateway, paused(gateway) as reader:
        gateway.scheduler.info.engine_fingerprint = "other"
        gateway.scheduler.lose_streams()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reader.finish()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "another model" in (caught.value.details() or "")


async def test_a_scheduler_that_stays_away_ends_the_request_in_time(
    run_gateway: GatewayFactory,
) -> None:
    timeouts = Timeouts(recovery_timeout_s=0.3)
    async with run_gateway(timeouts=timeouts) as gateway, paused(gateway) as reader:
        await gateway.scheduler.__aexit__()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reader.finish()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await gateway.until_ready(False)


async def test_requests_move_to_another_engine_of_the_same_fingerprint(
    run_gateway: GatewayFactory,
) -> None:
    async with FakeScheduler() as twin, FakeScheduler() as first:
        targets = (first.target, twin.target)
        async with run_gateway(schedulers=targets, wait=False) as gateway:
            async with asyncio.timeout(20):
                while len(gateway.server.service.engines.ready) < 2:
                    await gateway.server.readiness.changed.wait()
                    await asyncio.sleep(0)
            for fake in (first, twin):
                fake.frames_left = 40
            reader = Reader(gateway)
            await reader.until_text()
            lost, other = (first, twin) if first.adds else (twin, first)
            await lost.until(lambda: lost.frames_left == 0)
            other.frames_left = None
            await lost.__aexit__()
            await reader.finish()
            assert [add.resumed for add in other.adds] == [True]
    check_complete(reader)


async def test_an_add_that_was_not_admitted_is_no_resumed_one(gateway: Gateway) -> None:
    scheduler = gateway.scheduler
    scheduler.ignores_adds = True
    reader = Reader(gateway)
    await scheduler.until(lambda: scheduler.adds)
    scheduler.ignores_adds = False
    scheduler.lose_streams()
    await reader.finish()
    assert [add.resumed for add in scheduler.adds] == [False, False]
    check_complete(reader)


@pytest.mark.parametrize("stop", [[], ["never there"]])
async def test_a_lost_detokenizer_stream_repeats_and_loses_no_text(
    gateway: Gateway, stop: list[str]
) -> None:
    async with paused(gateway, stop=stop) as reader:
        gateway.tokenizer.lose_streams()
        await gateway.until_ready(False)
        await gateway.until_ready()
        gateway.scheduler.lose_streams()
        await reader.finish()
    check_complete(reader)


async def test_a_stop_string_across_a_lost_detokenizer_stream_is_found(gateway: Gateway) -> None:
    async with paused(gateway, stop=["dlr"], min_tokens=60) as reader:
        gateway.tokenizer.lose_streams()
        gateway.scheduler.lose_streams()
        await reader.finish()
    # The first one that is complete after more than 60 tokens.
    end = TEXT.index(b"dlr", 58)
    assert reader.text == TEXT[:end].decode("utf-8", "replace")
    assert reader.events[-2].finished.stop_string == "dlr"


async def test_a_tokenizer_that_starts_again_is_used(run_gateway: GatewayFactory) -> None:
    async with run_gateway() as gateway:
        await gateway.tokenizer.__aexit__()
        await gateway.until_ready(False)
        async with FakeTokenizer(listen=gateway.tokenizer.target):
            await gateway.until_ready()
            reader = Reader(gateway)
            await reader.finish()
    check_complete(reader)


async def test_a_tokenizer_that_stays_away_ends_requests_in_time(
    run_gateway: GatewayFactory,
) -> None:
    timeouts = Timeouts(recovery_timeout_s=0.3)
    async with run_gateway(timeouts=timeouts) as gateway, paused(gateway) as reader:
        await gateway.tokenizer.__aexit__()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reader.finish()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await gateway.scheduler.until(lambda: gateway.scheduler.aborts)


async def test_a_call_that_a_lost_tokenizer_never_answers_goes_to_the_next(
    run_gateway: GatewayFactory,
) -> None:
    async with FakeTokenizer() as stuck, FakeTokenizer() as other:
        stuck.is_stuck = True
        async with run_gateway(tokenizers=(stuck.target, other.target)) as gateway:
            question = inference_pb2.TokenizeRequest(text="hello")
            call = asyncio.ensure_future(gateway.grpc.Tokenize(question))
            await stuck.got_request.wait()
            stuck.lose_streams()
            answer = await call
    assert list(answer.token_ids)[-5:] == list(b"hello")


@pytest.mark.parametrize(
    ("stream", "method"),
    [(EngineStream, "_take_outputs"), (DetokenizerStream, "_take_answer")],
)
async def test_a_bug_in_a_stream_counts_as_its_loss(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, stream: type[Any], method: str
) -> None:
    works = getattr(stream, method)
    failures = iter([KeyError("a bug")])

    def fail_once(self: Any, frame: Any) -> None:
        for failure in failures:
            raise failure
        works(self, frame)

    monkeypatch.setattr(stream, method, fail_once)
    reader = Reader(gateway)
    await reader.finish()
    check_complete(reader)
    assert next(failures, None) is None


DRAINING = scheduler_pb2.RequestError(code=14, reason="DRAINING", message="going away")


async def test_a_refusal_of_a_draining_engine_waits_for_its_return(gateway: Gateway) -> None:
    async with paused(gateway) as reader:
        gateway.scheduler.refusal = DRAINING
        gateway.scheduler.lose_streams()
        await gateway.scheduler.until(lambda: len(gateway.scheduler.adds) == 2)
        await gateway.until_ready(False)
        gateway.scheduler.refusal = None
        gateway.scheduler.lose_streams()
        await reader.finish()
    check_complete(reader)


async def test_a_new_request_that_a_draining_engine_refuses_waits_for_its_return(
    gateway: Gateway,
) -> None:
    gateway.scheduler.refusal = DRAINING
    reader = Reader(gateway)
    await gateway.until_ready(False)
    gateway.scheduler.refusal = None
    gateway.scheduler.lose_streams()
    await reader.finish()
    check_complete(reader)


async def test_a_request_taken_back_from_a_draining_engine_can_be_left(gateway: Gateway) -> None:
    gateway.scheduler.refusal = DRAINING
    reader = Reader(gateway)
    await gateway.until_ready(False)
    reader.cancel()
    await gateway.server.service.wait_idle()
    assert [client.num_requests for client in gateway.server.service.engines.clients] == [0]


@pytest.mark.parametrize(
    "stream", [(EngineStream, "_take_outputs"), (DetokenizerStream, "_take_answer")]
)
async def test_a_stream_that_always_breaks_on_a_request_ends_it_in_time(
    run_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch, stream: tuple[type[Any], str]
) -> None:
    num_failures = 0

    def fail(self: Any, frame: Any) -> None:
        nonlocal num_failures
        num_failures += 1
        raise KeyError("a bug")

    timeouts = Timeouts(recovery_timeout_s=1.0)
    async with run_gateway(timeouts=timeouts) as gateway:
        with monkeypatch.context() as patch:
            patch.setattr(*stream, fail)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Reader(gateway).finish()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        # Waits double, so there were few tries; and the next request is served.
        assert 2 <= num_failures <= 10
        await gateway.until_ready(True)
        reader = Reader(gateway)
        await reader.finish()
        check_complete(reader)
