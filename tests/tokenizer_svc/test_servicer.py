"""The service over gRPC: the contract's cases, and what only the real one does."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import ServiceUnavailableError, from_rpc_error
from pagewire.kit.server import ServerConfig
from pagewire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.tokenizer_svc.conformance import *  # noqa: F403
from tests.tokenizer_svc.conformance import Stream, encode, opened, texts
from tokenizer_svc.chat_template import ChatTemplates
from tokenizer_svc.config import TokenizerServiceConfig
from tokenizer_svc.model_tokenizer import ModelTokenizer
from tokenizer_svc.server import TokenizerServer
from tokenizer_svc.servicer import TokenizerServicer

MEBIBYTE = 1 << 20


@pytest.fixture
async def server(smollm2: ModelTokenizer) -> AsyncIterator[TokenizerServer]:
    config = TokenizerServiceConfig(
        server=ServerConfig(listen="127.0.0.1:0", drain_timeout_s=0.0),
        max_prompt_bytes=2 * MEBIBYTE,
        num_threads=2,
    )
    templates = ChatTemplates(smollm2.chat_templates, smollm2.special_tokens)
    running = TokenizerServer(config, load=lambda _: (smollm2, templates))
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def stub(server: TokenizerServer) -> AsyncIterator[Any]:
    async with open_channel(server.server.address) as channel:
        yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)


async def refused(call: Any) -> Any:
    """The call's error, as the domain error that it was."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return from_rpc_error(caught.value)


def chat(**fields: Any) -> tokenizer_pb2.RenderChatRequest:
    request = tokenizer_pb2.RenderChatRequest(**fields)
    request.messages.add(role="user", content="hi")
    return request


async def test_the_info_is_that_of_the_model(stub: Any, smollm2: ModelTokenizer) -> None:
    info = await stub.GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest())
    assert info.fingerprint == smollm2.fingerprint
    assert (info.vocab_size, list(info.eos_token_ids)) == (49152, [2])
    assert not info.template_uses_tools


async def test_the_capital_of_france_is_asked_for_as_the_model_learned_it(stub: Any) -> None:
    request = tokenizer_pb2.RenderChatRequest()
    request.messages.add(role="user", content="What is the capital of France?")
    answer = await stub.RenderChat(request)
    assert answer.text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert list(answer.token_ids[:3]) == [1, 9690, 198]


async def test_files_come_whole_with_their_digests(
    stub: Any, smollm2_files: dict[str, bytes]
) -> None:
    received: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    async for part in stub.GetTokenizerFiles(tokenizer_pb2.GetTokenizerFilesRequest()):
        received[part.name] = received.get(part.name, b"") + part.chunk
        if part.sha256:
            digests[part.name] = part.sha256
            assert len(received[part.name]) == part.size
    assert received == smollm2_files
    expected = {name: hashlib.sha256(content).hexdigest() for name, content in received.items()}
    assert digests == expected


async def test_a_mebibyte_is_tokenized(stub: Any) -> None:
    text = ("All work and no play. " * 50_000)[:MEBIBYTE]
    ids = await encode(stub, text)
    request = tokenizer_pb2.DecodeRequest(rows=[{"ids": ids}])
    assert (await stub.Decode(request)).texts == [text]


async def test_small_calls_are_answered_while_a_large_one_runs(stub: Any) -> None:
    large = asyncio.ensure_future(encode(stub, "All work and no play. " * 60_000))
    answered = 0
    while not large.done():
        await encode(stub, "x")
        answered += 1
    assert len(await large) > 100_000
    assert answered > 2


async def test_a_text_that_is_too_long_names_its_field(stub: Any) -> None:
    request = tokenizer_pb2.EncodeRequest(texts=["a" * (2 * MEBIBYTE + 1)])
    error = await refused(stub.Encode(request))
    assert (error.field, error.reason) == ("texts", "PROMPT_TOO_LONG")


async def test_a_conversation_that_is_too_long_is_refused(stub: Any) -> None:
    request = tokenizer_pb2.RenderChatRequest()
    request.messages.add(role="user", content="\u20ac" * MEBIBYTE)
    assert (await refused(stub.RenderChat(request))).reason == "PROMPT_TOO_LONG"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools_json": "["}, "tools_json"),
        ({"tools_json": "{}"}, "tools_json"),
        ({"tools_json": "[" * 300 + "]" * 300}, "tools_json"),
        ({"template_arguments_json": "[]"}, "template_arguments_json"),
        ({"template_arguments_json": '{"x": NaN}'}, "template_arguments_json"),
        ({"template_arguments_json": "[" * 100_000}, "template_arguments_json"),
        ({"template_arguments_json": '{"messages": []}'}, "template_arguments"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
async def test_a_bad_chat_names_its_field(stub: Any, fields: dict[str, Any], field: str) -> None:
    assert (await refused(stub.RenderChat(chat(**fields)))).field == field
    assert (await stub.RenderChat(chat())).text


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "", "content": "x"}, "messages[0].role"),
        ({"role": "assistant", "tool_calls_json": "{}"}, "messages[0].tool_calls_json"),
        ({"role": "assistant", "tool_calls_json": "[1]"}, "messages[0].tool_calls_json"),
    ],
)
async def test_a_bad_message_names_its_field(
    stub: Any, message: dict[str, Any], field: str
) -> None:
    request = tokenizer_pb2.RenderChatRequest(messages=[message])
    assert (await refused(stub.RenderChat(request))).field == field


@pytest.mark.parametrize(
    "columns",
    [
        {"handles": [1], "token_counts": [1], "token_ids": [5], "ends": []},
        {"handles": [1], "token_counts": [], "token_ids": [5], "ends": [False]},
        {"handles": [1], "token_counts": [2], "token_ids": [5], "ends": [False]},
        {"handles": [1], "token_counts": [2**32 - 1], "token_ids": [5], "ends": [False]},
        {"extra_counts": [1], "extra_token_ids": [5]},
        {"last_is_stop_token": [True]},
    ],
)
async def test_columns_that_do_not_fit_end_the_stream(stub: Any, columns: dict[str, Any]) -> None:
    call = stub.Detokenize()
    await call.write(tokenizer_pb2.DetokenizeRequest(frame=1, **columns))
    await refused(call.read())


@pytest.mark.parametrize("number", [2, 2**60])
async def test_a_frame_out_of_turn_ends_the_stream(stub: Any, number: int) -> None:
    call = stub.Detokenize()
    await call.write(tokenizer_pb2.DetokenizeRequest(frame=number))
    assert (await refused(call.read())).field == "frame"


@pytest.mark.parametrize("stop", [[""], ["x"] * 5, ["x" * 1025]])
async def test_a_bad_open_harms_only_itself(stub: Any, stop: list[str]) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "a")
    answer = await stream.send([(1, ids), (2, ids)], opens=[opened(1, stop=stop), opened(2)])
    assert [error.handle for error in answer.errors] == [1]
    assert texts(answer) == {2: "a"}
    await stream.close()


async def test_a_handle_that_opens_twice_is_closed(stub: Any) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "a")
    await stream.send(opens=[opened(1)])
    answer = await stream.send([(1, ids)], opens=[opened(1)])
    assert [error.handle for error in answer.errors] == [1]
    assert texts(answer) == {}
    await stream.close()


async def test_streams_do_not_share_handles(stub: Any) -> None:
    one, two = Stream(stub), Stream(stub)
    a, b = await encode(stub, "a"), await encode(stub, "b")
    await one.send(opens=[opened(1)])
    await two.send(opens=[opened(1)])
    assert texts(await one.send([(1, a)])) == {1: "a"}
    assert texts(await two.send([(1, b)])) == {1: "b"}
    await one.close()
    await two.close()


async def test_a_peer_that_stops_writing_ends_the_stream(stub: Any) -> None:
    stream = Stream(stub)
    await stream.send(opens=[opened(1)])
    await stream.call.done_writing()
    assert await stream.call.read() is grpc.aio.EOF
    assert await stream.call.code() is grpc.StatusCode.OK


async def test_draining_ends_a_stream_between_two_frames(
    server: TokenizerServer, stub: Any
) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "a")
    await stream.send(opens=[opened(1)])
    assert texts(await stream.send([(1, ids)])) == {1: "a"}
    server.servicer.draining.set()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.call.read()
    assert from_rpc_error(caught.value).reason == "DRAINING"


async def test_before_the_tokenizer_is_loaded_calls_are_unavailable() -> None:
    context: Any = None
    with pytest.raises(ServiceUnavailableError, match="being loaded"):
        await TokenizerServicer().GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest(), context)
