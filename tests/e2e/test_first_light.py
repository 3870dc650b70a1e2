"""The first promise: one command, and every kind of client gets an answer from a real model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import openai
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.e2e.stack import Stack

QUESTION = "What is the capital of France?"
CHAT = {
    "messages": [{"role": "user", "content": QUESTION}],
    "sampling": {"temperature": 0},
    "stopping": {"max_tokens": 40},
}
SERVICE = "pagewire.v1.InferenceService"
BIN = Path(sys.executable).parent


def test_the_openai_client_streams_paris(smollm2_stack: Stack) -> None:
    with openai.OpenAI(base_url=f"{smollm2_stack.http_url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=40,
            stream=True,
        )
        deltas = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "Paris" in "".join(deltas)
    assert len([delta for delta in deltas if delta]) > 1


def test_pagewire_chat_answers_paris(smollm2_stack: Stack) -> None:
    command = ["chat", QUESTION, "--target", smollm2_stack.grpc_target]
    answer = subprocess.run(
        [str(BIN / "pagewire"), *command, "--max-tokens", "40"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout


def test_buf_curl_answers_paris(smollm2_stack: Stack) -> None:
    url = f"http://{smollm2_stack.grpc_target}/{SERVICE}/Chat"
    flags = ["--protocol", "grpc", "--http2-prior-knowledge"]
    answer = subprocess.run(
        [str(BIN / "buf"), "curl", *flags, "-d", json.dumps(CHAT), url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    decoder, text, events = json.JSONDecoder(), answer.stdout.strip(), []
    while text:
        event, end = decoder.raw_decode(text)
        events.append(event)
        text = text[end:].lstrip()
    assert "Paris" in "".join(event.get("delta", {}).get("content", "") for event in events)
    assert [next(iter(event)) for event in (events[0], events[-1])] == ["started", "usage"]


def _method_types(channel: grpc.Channel) -> tuple[type[Any], type[Any]]:
    """Request and response classes of Chat, from what reflection says and nothing else."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    pool, seen = DescriptorPool(), set()

    def add(request: reflection_pb2.ServerReflectionRequest) -> None:
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=10)
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = FileDescriptorProto.FromString(data)
            if file.name in seen:
                continue
            seen.add(file.name)
            for name in file.dependency:
                add(reflection_pb2.ServerReflectionRequest(file_by_filename=name))
            pool.Add(file)  # type: ignore[no-untyped-call]

    add(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
    method = pool.FindServiceByName(SERVICE).methods_by_name["Chat"]
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)


def test_a_client_that_knows_only_reflection_gets_paris(smollm2_stack: Stack) -> None:
    with grpc.insecure_channel(smollm2_stack.grpc_target) as channel:
        request_type, response_type = _method_types(channel)
        call = channel.unary_stream(
            f"/{SERVICE}/Chat",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_type.FromString,
        )
        request = ParseDict(CHAT, request_type())
        text = "".join(event.delta.content for event in call(request, timeout=60))
    assert "Paris" in text


def test_the_same_prompt_again_reports_cached_tokens_and_the_same_output(
    smollm2_stack: Stack,
) -> None:
    prompt = "The following is a list of the planets of our solar system, from the sun outwards: "
    with openai.OpenAI(base_url=f"{smollm2_stack.http_url}/v1", api_key="none") as client:
        answers = [
            client.completions.create(
                model="smollm2", prompt=prompt * 3, temperature=0, max_tokens=24
            )
            for _ in range(2)
        ]
    first, second = answers
    assert first.choices[0].text == second.choices[0].text
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= 32
    assert cached % 16 == 0
