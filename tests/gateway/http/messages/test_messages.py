"""`/v1/messages` over real HTTP: bodies, blocks, events, errors, with fakes behind the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import AccessConfig, Timeouts
from gateway.http.messages.blocks import INVALID_JSON
from gateway.message_config import MessageConfig
from pagewire.v1 import scheduler_pb2
from tests.fakes.fake_scheduler import MODEL, NUM_CACHED_TOKENS
from tests.fakes.fake_tokenizer import decode
from tests.gateway.conftest import Gateway, GatewayFactory
from tests.gateway.http.openapi.test_document import check_answer

PATH = "/v1/messages"
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TIME: dict[str, Any] = {"name": "get_time", "input_schema": {"type": "object"}}
CALLS = (
    "Let me see.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": MODEL, "max_tokens": 200, "messages": messages, "temperature": 0} | fields


async def post(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    answer = await gateway.http.post(PATH, json=body(**fields))
    assert answer.status_code == 200, answer.text
    check_answer(answer, PATH)
    message: dict[str, Any] = answer.json()
    return message


async def stream(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    """Return the events; each is named by its type."""
    answer = await gateway.http.post(PATH, json=body(stream=True, **fields))
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    events = []
    for part in answer.text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a message together as a client does."""
    message: dict[str, Any] = events[0]["message"]
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            name = {"input_json_delta": "json"}.get(delta["type"], delta["type"][:-6])
            block[name] += delta.get("partial_json", delta.get(name))
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    for block in message["content"]:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    return message


def prompt_of(gateway: Gateway) -> str:
    return decode(gateway.scheduler.adds[-1].prompt_token_ids)


async def test_a_message_has_blocks_a_reason_and_usage(gateway: Gateway) -> None:
    gateway.scheduler.script = "Hello."
    message = await post(gateway, system="Be brief.")
    assert message["content"] == [{"type": "text", "text": "Hello."}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert prompt_of(gateway) == "<system>Be brief.\n<user>Hi\n<assistant>"
    usage = message["usage"]
    assert usage["cache_read_input_tokens"] == NUM_CACHED_TOKENS
    assert usage["input_tokens"] + NUM_CACHED_TOKENS == len(
        gateway.scheduler.adds[-1].prompt_token_ids
    )
    assert usage["output_tokens"] >= len("Hello.")


@pytest.mark.parametrize("script", ["Hello.", CALLS, "<think>hm</think>So: " + CALLS])
async def test_a_stream_adds_up_to_the_whole(run_gateway: GatewayFactory, script: str) -> None:
    config = MessageConfig(reasoning_parser="qwen3")
    async with run_gateway(messages=config) as gateway:
        gateway.scheduler.script = script
        whole = await post(gateway, tools=[WEATHER, TIME])
        events = await stream(gateway, tools=[WEATHER, TIME])
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    found = assembled(events)
    for message in (whole, found):
        for block in message["content"]:
            block.pop("id", None)
        message.pop("id")
    assert found == whole


async def test_calls_are_blocks_and_end_the_turn(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    message = await post(gateway, tools=[WEATHER, TIME])
    text, first, second = message["content"]
    assert text["text"] == "Let me see."
    assert first | {"id": ""} == {
        "type": "tool_use",
        "id": "",
        "name": "get_weather",
        "input": {"city": "Köln"},
    }
    assert (second["name"], second["input"]) == ("get_time", {})
    assert message["stop_reason"] == "tool_use"
    (rendered,) = gateway.tokenizer.requests
    shown = json.loads(rendered.tools_json)[0]["function"]
    assert shown == {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": WEATHER["input_schema"],
    }


async def test_a_call_that_is_no_object_is_told(gateway: Gateway) -> None:
    gateway.scheduler.script = '{"city": "Kö'
    choice = {"type": "tool", "name": "get_weather"}
    message = await post(gateway, tools=[WEATHER], tool_choice=choice)
    assert message["content"][0]["input"] == {INVALID_JSON: '{"city": "Kö'}


@pytest.mark.parametrize(
    ("choice", "is_form", "is_shown"),
    [
        ({"type": "auto"}, False, True),
        ({"type": "any", "disable_parallel_tool_use": True}, True, True),
        ({"type": "tool", "name": "get_time"}, True, True),
        ({"type": "none"}, False, False),
    ],
)
async def test_choices_of_tools(
    gateway: Gateway, choice: dict[str, Any], is_form: bool, is_shown: bool
) -> None:
    await post(gateway, tools=[WEATHER, TIME], tool_choice=choice, max_tokens=2)
    params = gateway.scheduler.adds[0].sampling_params
    assert params.HasField("structured_outputs") == is_form
    assert bool(gateway.tokenizer.requests[0].tools_json) == is_shown


async def test_blocks_of_a_conversation_become_its_messages(gateway: Gateway) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t1", "name": "get_time", "input": {"z": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "noon"},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                {"type": "text", "text": "d", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "user", "content": "e"},
    ]
    system = [{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]
    await post(gateway, messages=messages, system=system, tools=[TIME], max_tokens=2)
    (rendered,) = gateway.tokenizer.requests
    found = [(each.role, each.content, each.tool_call_id) for each in rendered.messages]
    assert found == [
        ("system", "s\nt", ""),
        ("user", "a\nb", ""),
        ("assistant", "c", ""),
        ("tool", "noon", "t1"),
        ("tool", "Error: ", "t2"),
        ("user", "d\ne", ""),
    ]
    turn = rendered.messages[2]
    assert turn.reasoning_content == "hm"
    (call,) = json.loads(turn.tool_calls_json)
    assert (call["id"], json.loads(call["function"]["arguments"])) == ("t1", {"z": 1})


async def test_an_answer_goes_on_with_what_the_assistant_said_last(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}]
    await post(gateway, messages=messages, max_tokens=2)
    assert prompt_of(gateway) == "<user>Hi\n<assistant>The"


async def test_reasons_of_the_end(gateway: Gateway) -> None:
    gateway.scheduler.script = "one two three"
    message = await post(gateway, stop_sequences=["two", "x"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "two")
    assert message["content"][0]["text"] == "one "
    assert (await post(gateway, max_tokens=2))["stop_reason"] == "max_tokens"


async def test_parameters_reach_engine_and_template(gateway: Gateway) -> None:
    schema = {"type": "object", "properties": {}}
    form = {"format": {"type": "json_schema", "schema": schema}, "effort": "max"}
    await post(
        gateway,
        max_tokens=3,
        temperature=0.5,
        top_k=7,
        top_p=0.5,
        thinking={"type": "disabled"},
        output_config=form,
        metadata={"user_id": "me"},
    )
    params = gateway.scheduler.adds[0].sampling_params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (3, 0.5, 7, 0.5)
    assert json.loads(params.structured_outputs.json_schema) == schema
    arguments = json.loads(gateway.tokenizer.requests[0].template_arguments_json)
    assert arguments == {"reasoning_effort": "xhigh", "enable_thinking": False}


async def test_reasoning_is_a_block_unless_it_is_switched_off(run_gateway: GatewayFactory) -> None:
    async with run_gateway(messages=MessageConfig(reasoning_parser="qwen3")) as gateway:
        gateway.scheduler.script = "<think>hm</think>so"
        shown = await post(gateway, thinking={"type": "adaptive"})
        hidden = await post(gateway, thinking={"type": "disabled"})
        omitted = await post(gateway, thinking={"type": "adaptive", "display": "omitted"})
    assert shown["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "so"},
    ]
    assert hidden["content"] == omitted["content"] == [{"type": "text", "text": "so"}]


async def test_a_budget_of_thinking_reaches_the_engine(run_gateway: GatewayFactory) -> None:
    enabled = {"type": "enabled", "budget_tokens": 1024}
    async with run_gateway(messages=MessageConfig(reasoning_parser="qwen3")) as gateway:
        await post(gateway, thinking=enabled)
        (add,) = gateway.scheduler.adds
        assert add.sampling_params.thinking_budget.max_tokens == 1024
        arguments = json.loads(gateway.tokenizer.requests[0].template_arguments_json)
        assert arguments == {"enable_thinking": True}
        twice = body(thinking=enabled, thinking_token_budget=5)
        answer = await gateway.http.post(PATH, json=twice)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("thinking.budget_tokens: ")


async def test_tokens_of_a_conversation_are_counted(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    answer = await gateway.http.post(f"{PATH}/count_tokens", json={"messages": messages})
    check_answer(answer, f"{PATH}/count_tokens")
    assert answer.json() == {"input_tokens": len("<user>Hi\n<assistant>")}


def turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": 0}),
    ("messages", {"messages": []}),
    ("messages[0]", {"messages": ["x"]}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", turn("user")),
    ("messages[0].content[0]", turn("user", "x")),
    ("messages[0].content[0].type", turn("user", {"type": "image", "source": {}})),
    ("messages[0].content[0].text", turn("user", {"type": "text"})),
    ("messages[0].content[0].tool_use_id", turn("user", {"type": "tool_result"})),
    ("messages[0].content[0].type", turn("assistant", {"type": "tool_result"})),
    ("messages[0].content[0].input", turn("assistant", {"type": "tool_use", "input": "x"})),
    ("system", {"system": 1}),
    ("system[0].type", {"system": [{"type": "image"}]}),
    ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools[0].input_schema", {"tools": [{"name": "f"}]}),
    ("tools[0].name", {"tools": [TIME | {"name": "a b"}]}),
    ("tools", {"tools": [TIME, TIME]}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("tool_choice.type", {"tools": [TIME], "tool_choice": {"type": "required"}}),
    ("tool_choice.name", {"tools": [TIME], "tool_choice": {"type": "tool", "name": "g"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 0}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
    ("thinking.type", {"thinking": {"type": "much"}}),
    ("output_format.type", {"output_format": {"type": "xml"}}),
    ("stop_sequences", {"stop_sequences": ["a", "b", "c", "d", "e"]}),
    ("stop_sequences", {"stop_sequences": ["a"], "stop": ["b"]}),
    ("mcp_servers", {"mcp_servers": [{"type": "url"}]}),
    ("thinking_token_budget", {"thinking_token_budget": 5}),
    ("temperature", {"temperature": 3}),
]


async def test_what_is_wrong_is_named_in_anthropics_shape(gateway: Gateway) -> None:
    for field, fields in BAD:
        answer = await gateway.http.post(PATH, json=body(**fields))
        assert answer.status_code == 400, (fields, answer.text)
        check_answer(answer, PATH)
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"{field}: "), (fields, error)
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert gateway.scheduler.adds == []


async def test_errors_of_all_kinds_have_anthropics_types(run_gateway: GatewayFactory) -> None:
    async def kind(gateway: Gateway, status: int, **fields: Any) -> str:
        answer = await gateway.http.post(PATH, json=body(**fields))
        assert answer.status_code == status, answer.text
        found: str = answer.json()["error"]["type"]
        return found

    async with run_gateway() as gateway:
        assert await kind(gateway, 404, model="none") == "not_found_error"
        full = {"code": 8, "reason": "QUEUE_FULL", "message": "the queue is full"}
        gateway.scheduler.refusal = scheduler_pb2.RequestError(**full)
        assert await kind(gateway, 429, stream=True) == "rate_limit_error"
        wrong = await gateway.http.get(PATH)
        assert (wrong.status_code, wrong.json()["type"]) == (405, "error")
    async with run_gateway(access=AccessConfig(api_key=("k",))) as gateway:
        assert await kind(gateway, 401) == "authentication_error"
        allowed = await gateway.http.post(PATH, json=body(), headers={"x-api-key": "k"})
        assert allowed.status_code == 200
    async with run_gateway(tokenizers=("127.0.0.1:1",), wait=False) as gateway:
        assert await kind(gateway, 503) == "overloaded_error"


async def test_an_error_behind_the_beginning_is_an_event(run_gateway: GatewayFactory) -> None:
    async with run_gateway(timeouts=Timeouts(request_timeout_s=1.0)) as gateway:
        gateway.scheduler.go_on.clear()
        events = await stream(gateway)
    assert [event["type"] for event in events] == ["message_start", "error"]
    assert events[-1]["error"]["type"] == "timeout_error"


async def test_a_stream_that_waits_gets_pings(run_gateway: GatewayFactory) -> None:
    timeouts = Timeouts(stream_keep_alive_s=0.05)
    async with run_gateway(timeouts=timeouts) as gateway:
        gateway.scheduler.go_on.clear()
        request = gateway.http.stream("POST", PATH, json=body(stream=True))
        async with request as answer:
            async for line in answer.aiter_lines():
                if line == "event: ping":
                    gateway.scheduler.go_on.set()
                if line == "event: message_stop":
                    break
            else:
                pytest.fail("the stream ended early")
