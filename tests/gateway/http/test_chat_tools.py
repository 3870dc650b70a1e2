"""Tools over real HTTP: what reaches template and engine, and how scripted outputs come back."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openai import AsyncOpenAI

from gateway.message_config import MessageConfig
from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import Gateway, GatewayFactory

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
        "strict": True,
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
NAMED = {"type": "function", "function": {"name": "get_time"}}
CALLS = (
    "Let me see.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": MODEL, "messages": messages, "temperature": 0} | fields


async def post(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    answer = await gateway.http.post(PATH, json=chat(**fields))
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


async def stream(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    """Return the choices of all chunks."""
    answer = await gateway.http.post(PATH, json=chat(stream=True, **fields))
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]", answer.text
    return [json.loads(line)["choices"][0] for line in lines[:-1]]


async def test_calls_of_the_models_own_choice(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    choice = await post(gateway, tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Let me see."
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Köln"}'},
        {"name": "get_time", "arguments": "{}"},
    ]
    assert {call["type"] for call in message["tool_calls"]} == {"function"}
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    (rendered,) = gateway.tokenizer.requests
    functions = [tool["function"] for tool in json.loads(rendered.tools_json)]
    # Templates show what they get, so they get no more than models were trained on.
    assert [sorted(each) for each in functions] == [["description", "name", "parameters"], ["name"]]
    params = gateway.scheduler.adds[0].sampling_params
    assert params.skip_special_tokens is False
    # One tool is strict, so the text of calls has a form.
    tag = json.loads(params.structured_outputs.structural_tag)
    (call, _) = tag["format"]["tags"]
    assert call["content"]["json_schema"] == WEATHER["function"]["parameters"]


async def test_calls_alone_have_no_content(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS.removeprefix("Let me see.\n")
    assert (await post(gateway, tools=TOOLS))["message"]["content"] is None


async def test_a_stream_adds_up_to_the_whole(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    whole = (await post(gateway, tools=TOOLS))["message"]
    choices = await stream(gateway, tools=TOOLS)
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["content"]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", [])]
    for index, call in enumerate(whole["tool_calls"]):
        first, *others = [piece for piece in pieces if piece["index"] == index]
        assert (first["type"], first["function"]["name"]) == ("function", call["function"]["name"])
        assert first["id"]
        assert all(set(piece) == {"index", "function"} for piece in others)
        arguments = "".join(piece["function"]["arguments"] for piece in (first, *others))
        assert arguments == call["function"]["arguments"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [
        "tool_calls"
    ]


async def test_openais_client_reads_a_stream_of_calls(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    client = AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key="none")
    messages: Any = [{"role": "user", "content": "Hi"}]
    tools: Any = TOOLS
    async with (
        client,
        client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as events,
    ):
        done = [e async for e in events if e.type == "tool_calls.function.arguments.done"]
        final = await events.get_final_completion()
    assert [(event.name, event.arguments) for event in done] == [
        ("get_weather", '{"city": "Köln"}'),
        ("get_time", "{}"),
    ]
    assert final.choices[0].finish_reason == "tool_calls"


async def test_one_call_where_only_one_is_wanted(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    choice = await post(gateway, tools=TOOLS, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]


async def test_every_output_of_n_has_its_own_calls(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    body = chat(tools=TOOLS, n=2, temperature=1)
    choices = (await gateway.http.post(PATH, json=body)).json()["choices"]
    assert [len(choice["message"]["tool_calls"]) for choice in choices] == [2, 2]
    ids = {call["id"] for choice in choices for call in choice["message"]["tool_calls"]}
    assert len(ids) == 4


async def test_an_output_that_is_cut_off_says_so(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    choice = await post(gateway, tools=TOOLS, max_tokens=70)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"


@pytest.mark.parametrize("choice", ["none", None])
async def test_without_tools_to_call_all_is_content(gateway: Gateway, choice: str | None) -> None:
    gateway.scheduler.script = CALLS
    answer = await post(gateway, **({"tools": TOOLS, "tool_choice": "none"} if choice else {}))
    assert answer["message"]["content"] == CALLS
    assert answer["finish_reason"] == "stop"
    assert "tool_calls" not in answer["message"]
    # A model that is shown tools calls them.
    assert gateway.tokenizer.requests[0].tools_json == ""


async def test_a_required_call_is_forced_by_a_schema(gateway: Gateway) -> None:
    gateway.scheduler.script = '[{"name": "get_weather", "arguments": {"city": "Köln"}}]'
    choice = await post(gateway, tools=TOOLS, tool_choice="required")
    params = gateway.scheduler.adds[0].sampling_params
    schema = json.loads(params.structured_outputs.json_schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(json.loads(gateway.scheduler.script))
    assert not validator.is_valid([{"name": "get_weather", "arguments": {}}])
    assert not validator.is_valid([])
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Köln"}'}
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


async def test_a_named_call_is_forced_by_the_schema_of_its_arguments(gateway: Gateway) -> None:
    gateway.scheduler.script = '{"a": 1}'
    choice = await post(gateway, tools=TOOLS, tool_choice=NAMED)
    params = gateway.scheduler.adds[0].sampling_params
    assert json.loads(params.structured_outputs.json_schema)["type"] == "object"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get_time", "arguments": '{"a": 1}'}
    assert choice["finish_reason"] == "tool_calls"
    deltas = [each["delta"] for each in await stream(gateway, tools=TOOLS, tool_choice=NAMED)]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a": 1}'


async def test_the_format_is_the_servers_choice(run_gateway: GatewayFactory) -> None:
    async with run_gateway(messages=MessageConfig(tool_call_parser="mistral")) as gateway:
        gateway.scheduler.script = '[TOOL_CALLS]get_time{"a": 1}'
        (call,) = (await post(gateway, tools=[TIME]))["message"]["tool_calls"]
        assert call["function"] == {"name": "get_time", "arguments": '{"a": 1}'}
        assert len(call["id"]) == 9


async def test_the_models_own_choice_can_be_off(run_gateway: GatewayFactory) -> None:
    async with run_gateway(messages=MessageConfig(enable_auto_tool_choice=False)) as gateway:
        answer = await gateway.http.post(PATH, json=chat(tools=TOOLS))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tool_choice"
        gateway.scheduler.script = "{}"
        assert await post(gateway, tools=TOOLS, tool_choice=NAMED)


async def test_calls_and_results_reach_the_template(gateway: Gateway) -> None:
    function = {"name": "get_time", "arguments": '{"zone": "é"}'}
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "noon"}]},
    ]
    await post(gateway, messages=messages, max_tokens=1)
    rendered = gateway.tokenizer.requests[0].messages
    (call,) = json.loads(rendered[1].tool_calls_json)
    assert call == {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_time", "arguments": {"zone": "é"}},
    }
    assert (rendered[1].HasField("content"), rendered[1].reasoning_content) == (False, "Hm.")
    assert (rendered[2].role, rendered[2].content, rendered[2].tool_call_id) == (
        "tool",
        "noon",
        "c1",
    )


def with_call(function: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": [{"function": function}]}]}


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function}]}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_allowed_tools_are_all_that_the_model_sees_and_can_call(gateway: Gateway) -> None:
    gateway.scheduler.script = CALLS
    await post(gateway, tools=TOOLS, tool_choice=allowed("auto", "get_time"))
    (rendered,) = gateway.tokenizer.requests
    assert [each["function"]["name"] for each in json.loads(rendered.tools_json)] == ["get_time"]
    form = gateway.scheduler.adds[0].sampling_params.structured_outputs
    (call,) = json.loads(form.structural_tag)["format"]["tags"]
    assert call["begin"].endswith('{"name": "get_time", "arguments": ')


async def test_one_of_the_allowed_tools_may_be_required(gateway: Gateway) -> None:
    gateway.scheduler.script = '[{"name": "get_time", "arguments": {}}]'
    choice = await post(gateway, tools=TOOLS, tool_choice=allowed("required", "get_time"))
    assert choice["finish_reason"] == "tool_calls"
    schema = json.loads(gateway.scheduler.adds[0].sampling_params.structured_outputs.json_schema)
    assert len(schema["items"]["anyOf"]) == 1
    assert schema["items"]["anyOf"][0]["properties"]["name"]["enum"] == ["get_time"]


DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"items": DEEP}

BAD: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"tools": []}),
    ("tools", {"tools": {}}),
    ("tools", {"tools": [TIME | {"function": {"name": f"f{i}"}} for i in range(129)]}),
    ("tools[0]", {"tools": [1]}),
    ("tools[0].type", {"tools": [{"function": {"name": "f"}}]}),
    ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[0].function.name", tool()),
    ("tools[0].function.name", tool(name="")),
    ("tools[0].function.name", tool(name="a b")),
    ("tools[0].function.name", tool(name="x" * 129)),
    ("tools[0].function.parameters", tool(name="f", parameters=[])),
    ("tools[0].function.strict", tool(name="f", strict=1)),
    ("tools[1].function.name", {"tools": [TIME, TIME]}),
    ("tools", tool(name="f", parameters=DEEP) | {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": "auto"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": NAMED}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": "any"}),
    ("tool_choice", {"tools": TOOLS, "tool_choice": 1}),
    ("tool_choice.type", {"tools": TOOLS, "tool_choice": {}}),
    ("tool_choice.type", {"tools": TOOLS, "tool_choice": {"type": "custom"}}),
    ("tool_choice", {"tool_choice": allowed("auto", "get_time")}),
    (
        "tool_choice.allowed_tools",
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}},
    ),
    (
        "tool_choice.allowed_tools.mode",
        {"tools": TOOLS, "tool_choice": allowed("none", "get_time")},
    ),
    ("tool_choice.allowed_tools.tools", {"tools": TOOLS, "tool_choice": allowed("auto")}),
    (
        "tool_choice.allowed_tools.tools[1]",
        {"tools": TOOLS, "tool_choice": allowed("auto", "get_time", "other")},
    ),
    (
        "tool_choice.allowed_tools.tools[0].function",
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]},
            },
        },
    ),
    ("tool_choice.function", {"tools": TOOLS, "tool_choice": {"type": "function"}}),
    (
        "tool_choice.function.name",
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
    ),
    ("parallel_tool_calls", {"tools": TOOLS, "parallel_tool_calls": "no"}),
    ("tools", {"tools": TOOLS, "response_format": {"type": "json_object"}}),
    (
        "tools",
        {"tools": TOOLS, "tool_choice": "required", "structured_outputs": {"regex": "a"}},
    ),
    ("functions", {"functions": [{"name": "f"}]}),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": "x"}]}),
    ("messages[0].tool_calls[0]", {"messages": [{"role": "assistant", "tool_calls": [1]}]}),
    ("messages[0].tool_calls[0].function", with_call(None)),
    ("messages[0].tool_calls[0].function.name", with_call({"arguments": "{}"})),
    ("messages[0].tool_calls[0].function.arguments", with_call({"name": "f", "arguments": "{"})),
    ("messages[0].tool_calls[0].function.arguments", with_call({"name": "f", "arguments": "[]"})),
    ("messages[0].tool_calls[0].function.arguments", with_call({"name": "f", "arguments": 1})),
    ("reasoning_effort", {"reasoning_effort": "huge"}),
]


async def test_bad_tools_are_400_and_named(gateway: Gateway) -> None:
    for param, fields in BAD:
        answer = await gateway.http.post(PATH, json=chat(**fields))
        assert answer.status_code == 400, (fields, answer.text)
        assert answer.json()["error"]["param"] == param, (fields, answer.text)
    assert gateway.scheduler.adds == []


async def test_a_form_is_fine_where_no_tool_is_called(gateway: Gateway) -> None:
    fields = {"tools": TOOLS, "tool_choice": "none", "response_format": {"type": "json_object"}}
    await post(gateway, max_tokens=1, **fields)
    assert gateway.scheduler.adds[0].sampling_params.structured_outputs.json_object
