"""Both clients against a scripted gateway: what they send, return, raise and try again."""

from __future__ import annotations

import asyncio
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import grpc
import pytest

from pagewire import AsyncClient, Client, Tls
from pagewire.client.types import Delta, Model, Usage
from pagewire.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    QueueFullError,
    RequestCancelledError,
    ServiceUnavailableError,
    UnauthenticatedError,
)
from pagewire.v1 import inference_pb2
from tests.fakes.scripted_inference import running_inference
from tests.pagewire.client.conftest import events

CHAT = inference_pb2.ChatResponse


def test_a_prompt_is_continued(gateway, connect):
    gateway.scripts["Generate"] = lambda request, call: events("a", "b")
    output = connect(gateway.target).call("generate", "Hi", max_tokens=2)
    assert (output.text, output.prompt, output.request_id) == ("ab", "Hi", "r")
    assert output.outputs[0].finish_reason == "length" and output.usage == Usage(1, 2)
    assert gateway.calls[0].request.stopping.max_tokens == 2


def test_a_conversation_is_answered(gateway, connect):
    gateway.scripts["Chat"] = lambda request, call: events("Hello", kind=CHAT)
    assert connect(gateway.target).call("chat", "Hi", temperature=0).text == "Hello"
    assert gateway.calls[0].request.messages[0].content == "Hi"


@pytest.mark.parametrize("method", ["generate_stream", "chat_stream"])
def test_a_stream_gives_what_is_new_as_it_comes(gateway, connect, method):
    gateway.scripts["Generate"] = lambda request, call: events("a", "b")
    gateway.scripts["Chat"] = lambda request, call: events("a", "b", kind=CHAT)
    deltas = list(connect(gateway.target).stream(method, "Hi"))
    assert deltas == [Delta(text="a"), Delta(text="b"), Delta(finish_reason="length")]


def test_tokens_and_models_are_asked_for(gateway, connect):
    def answer(message):
        return lambda request, call: iter([message])

    gateway.scripts = {
        "CountTokens": answer(inference_pb2.CountTokensResponse(num_tokens=3)),
        "Tokenize": answer(inference_pb2.TokenizeResponse(token_ids=[1, 2])),
        "Detokenize": answer(inference_pb2.InferenceServiceDetokenizeResponse(text="Hi")),
        "ListModels": answer(
            inference_pb2.ListModelsResponse(
                models=[inference_pb2.Model(id="m", max_model_len=8, created=1)]
            )
        ),
    }
    client = connect(gateway.target)
    assert client.call("count_tokens", "Hi") == 3
    assert client.call("tokenize", "Hi") == [1, 2]
    assert client.call("detokenize", [1, 2]) == "Hi"
    assert client.call("list_models") == (Model("m", 8, 1),)
    with pytest.raises(InvalidRequestError):
        client.call("detokenize", [-1])


def test_a_refusal_has_its_class_reason_and_field(gateway, connect):
    def refuse(request, call):
        raise InvalidRequestError("top_p: no", reason="INVALID_PARAMETER", field="top_p")
        yield

    gateway.scripts["Generate"] = refuse
    gateway.scripts["CountTokens"] = refuse
    client = connect(gateway.target)
    for method in ("generate", "count_tokens"):
        with pytest.raises(InvalidRequestError, match="top_p: no") as caught:
            client.call(method, "Hi")
        assert (caught.value.reason, caught.value.field) == ("INVALID_PARAMETER", "top_p")
    assert len(gateway.calls) == 2


def test_a_full_queue_says_when_to_come_again_and_is_not_retried(gateway, connect):
    def refuse(request, call):
        raise QueueFullError("full", retry_after_s=2.5)
        yield

    gateway.scripts["Chat"] = refuse
    with pytest.raises(QueueFullError) as caught:
        connect(gateway.target).call("chat", "Hi")
    assert caught.value.retry_after_s == 2.5 and len(gateway.calls) == 1


@pytest.mark.parametrize("method", ["generate", "chat", "list_models"])
def test_what_was_not_admitted_is_tried_again(gateway, connect, method):
    attempts = count(1)

    def script(answers):
        def play(request, call):
            if next(attempts) < 3:
                raise ServiceUnavailableError("draining")
            yield from answers

        return play

    gateway.scripts = {
        "Generate": script(events("a")),
        "Chat": script(events("a", kind=CHAT)),
        "ListModels": script([inference_pb2.ListModelsResponse()]),
    }
    connect(gateway.target).call(method, *([] if method == "list_models" else ["Hi"]))
    assert len(gateway.calls) == 3


@pytest.mark.parametrize("method", ["generate", "list_models"])
def test_what_came_as_the_gateway_stopped_is_tried_again(gateway, connect, method):
    """gRPC cancels it, and no handler has seen it."""
    attempts = count(1)

    def script(answers):
        def play(request, call):
            if next(attempts) < 3:
                call.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
            yield from answers

        return play

    gateway.scripts["Generate"] = script(events("a"))
    gateway.scripts["ListModels"] = script([inference_pb2.ListModelsResponse()])
    connect(gateway.target).call(method, *([] if method == "list_models" else ["Hi"]))
    assert len(gateway.calls) == 3


def test_nothing_is_tried_again_that_was_admitted(gateway, connect):
    def lose(request, call):
        yield next(events())
        raise ServiceUnavailableError("lost", reason="REPLICA_LOST")

    gateway.scripts["Generate"] = lose
    with pytest.raises(ServiceUnavailableError) as caught:
        connect(gateway.target).call("generate", "Hi")
    assert caught.value.reason == "REPLICA_LOST" and len(gateway.calls) == 1


def test_retries_can_be_switched_off(gateway, connect):
    def refuse(request, call):
        raise ServiceUnavailableError("draining", reason="DRAINING")
        yield

    gateway.scripts["Generate"] = refuse
    with pytest.raises(ServiceUnavailableError) as caught:
        connect(gateway.target, retry=False).call("generate", "Hi")
    assert caught.value.reason == "DRAINING" and len(gateway.calls) == 1


def test_a_gateway_that_is_not_there_is_told_without_internals(connect):
    with pytest.raises(ServiceUnavailableError) as caught:
        connect("127.0.0.1:1", retry=False).call("generate", "Hi")
    assert caught.value.message == (
        "the gateway at 127.0.0.1:1 cannot be reached, or the connection to it was lost"
    )


def test_errors_name_all_addresses_that_were_tried(connect):
    with pytest.raises(ServiceUnavailableError, match=r"at ipv4:127\.0\.0\.1:1,127\.0\.0\.2:1 "):
        connect(["127.0.0.1:1", "127.0.0.2:1"], retry=False).call("list_models")


def test_an_answer_that_is_cut_is_no_answer(gateway, connect):
    gateway.scripts["Generate"] = lambda request, call: events("a", complete=False)
    with pytest.raises(ServiceUnavailableError) as caught:
        connect(gateway.target).call("generate", "Hi")
    assert caught.value.reason == "INCOMPLETE_ANSWER"
    assert gateway.target in caught.value.message


@pytest.mark.parametrize("options", [{"timeout": 0.3}, {}])
def test_a_deadline_travels_with_the_call_and_ends_it(gateway, connect, options):
    def hang(request, call):
        yield next(events())
        call.hang()

    gateway.scripts["Generate"] = hang
    client = connect(gateway.target, timeout=0.3 if not options else 100.0)
    with pytest.raises(DeadlineExceededError):
        client.call("generate", "Hi", **options)
    assert gateway.calls[0].time_remaining <= 0.31


def test_a_stream_that_is_left_is_cancelled(gateway, connect):
    def hang(request, call):
        yield from list(events("a"))[:2]
        call.hang()

    gateway.scripts["Generate"] = hang
    stream = connect(gateway.target).stream("generate_stream", "Hi")
    assert next(stream) == Delta(text="a")
    stream.close()
    gateway.calls[0].hang()


def test_a_stream_that_another_thread_cancels_says_so(gateway):
    def hang(request, call):
        yield next(events())
        call.hang()

    gateway.scripts["Generate"] = hang
    with Client(gateway.target) as client, ThreadPoolExecutor() as pool:
        stream = client.generate_stream("Hi")
        reading = pool.submit(lambda: list(stream))
        gateway.wait_calls(1)
        stream.cancel()
        with pytest.raises(RequestCancelledError):
            reading.result()
        gateway.calls[0].hang()


async def test_the_end_of_a_task_cancels_its_request(gateway):
    def hang(request, call):
        yield next(events())
        call.hang()

    gateway.scripts["Chat"] = hang
    async with AsyncClient(gateway.target) as client:
        task = asyncio.create_task(client.chat("Hi"))
        await asyncio.to_thread(gateway.wait_calls, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(gateway.calls[0].hang)


async def test_a_stream_that_another_task_cancels_says_so(gateway):
    def hang(request, call):
        yield next(events())
        call.hang()

    gateway.scripts["Generate"] = hang
    async with AsyncClient(gateway.target) as client:
        stream = client.generate_stream("Hi")
        reading = asyncio.create_task(stream.collect())
        await asyncio.to_thread(gateway.wait_calls, 1)
        stream.cancel()
        with pytest.raises(RequestCancelledError):
            await reading


def test_the_key_is_a_bearer_token(gateway, connect):
    def check(request, call):
        if call.metadata.get("authorization") != "Bearer secret":
            raise UnauthenticatedError("no")
        yield inference_pb2.ListModelsResponse()

    gateway.scripts["ListModels"] = check
    assert connect(gateway.target, api_key="secret").call("list_models") == ()
    with pytest.raises(UnauthenticatedError):
        connect(gateway.target).call("list_models")


def test_calls_go_round_the_addresses_and_around_one_that_is_away(connect):
    with running_inference() as one, running_inference() as two:
        for gateway in (one, two):
            gateway.scripts["ListModels"] = lambda request, call: iter(
                [inference_pb2.ListModelsResponse()]
            )
        client = connect([one.target, two.target, "127.0.0.1:1"])
        while not (one.calls and two.calls):  # the first ones may go to who is connected first
            client.call("list_models")


def test_a_connection_is_secured(connect, tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=gateway.test",
         "-addext", "subjectAltName=DNS:gateway.test"],
        check=True, capture_output=True,
    )  # fmt: skip
    pair = (key.read_bytes(), certificate.read_bytes())
    with running_inference(credentials=grpc.ssl_server_credentials([pair])) as gateway:
        gateway.scripts["ListModels"] = lambda request, call: iter(
            [inference_pb2.ListModelsResponse()]
        )
        trusting = Tls.from_files(root_certificates=certificate, server_name="gateway.test")
        assert connect(gateway.target, tls=trusting).call("list_models") == ()
        for tls in (False, True):
            with pytest.raises(ServiceUnavailableError):
                connect(gateway.target, tls=tls, retry=False).call("list_models")


def test_a_closed_client_says_so(gateway, connect):
    client = connect(gateway.target)
    client.shut()
    client.shut()
    with pytest.raises(RuntimeError, match="closed"):
        client.call("list_models")


def test_threads_share_a_client(gateway):
    gateway.scripts["Generate"] = lambda request, call: events(request.text)
    with Client(gateway.target) as client, ThreadPoolExecutor(8) as pool:
        outputs = pool.map(client.generate, [str(i) for i in range(64)])
        assert [output.text for output in outputs] == [str(i) for i in range(64)]


async def test_the_blocking_client_works_beside_an_event_loop(gateway):
    gateway.scripts["Generate"] = lambda request, call: events("a")
    with Client(gateway.target) as client:
        assert client.generate("Hi").text == "a"


def test_an_async_client_is_made_anywhere_and_belongs_to_its_first_loop(gateway):
    gateway.scripts["Generate"] = lambda request, call: events("a")
    client = AsyncClient(gateway.target)

    async def use():
        return (await client.generate("Hi")).text

    with asyncio.Runner() as first:
        assert first.run(use()) == "a"
        with pytest.raises(RuntimeError, match="another event loop"), asyncio.Runner() as second:
            second.run(use())
        first.run(client.close())
