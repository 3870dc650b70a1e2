"""Tools and reasoning over gRPC: deltas that tell them apart, on scripted outputs."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from gateway.message_config import MessageConfig
from pagewire.kit.errors import from_rpc_error
from pagewire.v1 import common_pb2, inference_pb2
from tests.gateway.conftest import Gateway, GatewayFactory

TOOLS = [
    inference_pb2.Tool(
        name="get_weather",
        description="Tells the weather.",
        parameters_json='{"type": "object", "properties": {"city": {"type": "string"}}}',
    ),
    inference_pb2.Tool(name="get_time"),
]
CALLS = (
    "Let me see.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


def chat(**fields: Any) -> inference_pb2.ChatRequest:
    messages = [inference_pb2.ChatMessage(role="user", content="Hi")]
    return inference_pb2.ChatRequest(messages=messages, **fields)


async def answer(gateway: Gateway, **fields: Any) -> tuple[Any, Any]:
    """Return all deltas as one, and the finish."""
    whole, finished = inference_pb2.ChatDelta(), None
    async for event in gateway.grpc.Chat(chat(**fields)):
        if event.WhichOneof("event") == "delta":
            whole.content += event.delta.content
            whole.reasoning += event.delta.reasoning
            for call in event.delta.tool_calls:
                if call.index == len(whole.tool_calls):
                    assert call.id and call.name
                    whole.tool_calls.append(call)
                else:
                    assert not call.id and not call.name
                    whole.tool_calls[call.index].arguments_json += call.arguments_json
        elif event.WhichOneof("event") == "finished":
            finished = event.finished
    return whole, finished


async def test_calls_come_as_deltas_of_their_own(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    whole, finished = await answer(gateway, tools=TOOLS)
    assert whole.content == "Let me see."
    assert [(call.name, json.loads(call.arguments_json)) for call in whole.tool_calls] == [
        ("get_weather", {"city": "Köln"}),
        ("get_time", {}),
    ]
    assert finished.finish_reason == common_pb2.FINISH_REASON_TOOL_CALLS


async def test_without_tools_calls_are_text(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    whole, finished = await answer(gateway)
    assert whole.content == CALLS and not whole.tool_calls
    assert finished.finish_reason == common_pb2.FINISH_REASON_STOP


async def test_none_hides_the_tools_from_the_template(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    none = inference_pb2.ToolChoice(mode=inference_pb2.TOOL_CHOICE_MODE_NONE)
    whole, _ = await answer(gateway, tools=TOOLS, tool_choice=none)
    assert whole.content == CALLS
    assert gateway.tokenizer.requests[-1].tools_json == ""


@pytest.mark.parametrize(
    "choice",
    [
        inference_pb2.ToolChoice(mode=inference_pb2.TOOL_CHOICE_MODE_REQUIRED),
        inference_pb2.ToolChoice(function_name="get_time"),
    ],
)
async def test_a_call_that_must_be_is_a_form_of_the_output(
    gateway: Gateway, choice: inference_pb2.ToolChoice
) -> None:
    await answer(gateway, tools=TOOLS, tool_choice=choice)
    params = gateway.scheduler.adds[-1].sampling_params
    assert params.HasField("structured_outputs")


async def test_a_strict_tool_is_a_form_of_calls(gateway: Gateway) -> None:
    strict = inference_pb2.Tool(name="f", parameters_json='{"properties": {}}', strict=True)
    await answer(gateway, tools=[strict, *TOOLS])
    form = gateway.scheduler.adds[-1].sampling_params.structured_outputs
    tags = json.loads(form.structural_tag)["format"]["tags"]
    schemas = [tag["content"]["json_schema"] for tag in tags]
    assert schemas == [{"type": "object", "properties": {}}, {"type": "object"}, {"type": "object"}]


async def test_reasoning_comes_apart(run_gateway: GatewayFactory) -> None:
    messages = MessageConfig(reasoning_parser="qwen3")
    async with run_gateway(messages=messages) as gateway:
        gateway.scheduler.script = "<think>hm</think>so"
        whole, _ = await answer(gateway)
    assert (whole.reasoning, whole.content) == ("hm", "so")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools"),
        (
            {"tools": TOOLS, "tool_choice": inference_pb2.ToolChoice(function_name="f")},
            "tool_choice.function_name",
        ),
        (
            {"tool_choice": inference_pb2.ToolChoice(mode=3)},  # type: ignore[arg-type]
            "tool_choice.mode",
        ),
        (
            {"tool_choice": inference_pb2.ToolChoice(mode=99)},  # type: ignore[arg-type]
            "tool_choice.mode",
        ),
    ],
)
async def test_choices_that_cannot_be_are_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer(gateway, **fields)
    error = from_rpc_error(caught.value)
    assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
