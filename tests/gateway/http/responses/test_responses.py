"""`/v1/responses` with OpenAI's own client, and fakes behind the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from gateway.config import RequestLimits
from gateway.message_config import MessageConfig
from pagewire.v1 import common_pb2
from tests.fakes.fake_scheduler import MODEL, NUM_CACHED_TOKENS
from tests.fakes.fake_tokenizer import decode
from tests.gateway.conftest import Gateway, GatewayFactory
from tests.gateway.http.openapi.test_document import check_answer


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{gateway.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as each:
        yield each


def prompt_of(gateway: Gateway) -> str:
    return decode(gateway.scheduler.adds[-1].prompt_token_ids)


async def test_a_response_is_what_the_client_expects(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    response = await client.responses.create(
        model=MODEL,
        input="ab",
        instructions="Be brief.",
        max_output_tokens=4,
        temperature=0.5,
        metadata={"k": "v"},
    )
    assert prompt_of(gateway) == "<system>Be brief.\n<user>ab\n<assistant>"
    assert response.output_text == ">tna"
    assert (response.status, response.incomplete_details) == (
        "incomplete",
        openai.types.responses.response.IncompleteDetails(reason="max_output_tokens"),
    )
    assert (response.instructions, response.metadata) == ("Be brief.", {"k": "v"})
    assert (response.temperature, response.max_output_tokens) == (0.5, 4)
    assert response.tools == [] and response.tool_choice == "auto"
    usage = response.usage
    assert usage is not None
    assert (usage.output_tokens, usage.total_tokens) == (4, usage.input_tokens + 4)
    assert usage.input_tokens_details.cached_tokens == NUM_CACHED_TOKENS


async def test_a_stream_has_typed_events_in_order(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "ab", "extra_body": {"stop": ["ssa"]}}
    async with client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text == ">tnatsi"


async def test_a_stream_is_the_same_as_the_whole(client: openai.AsyncOpenAI) -> None:
    whole = await client.responses.create(input="one two", max_output_tokens=30)
    stream = await client.responses.create(input="one two", max_output_tokens=30, stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage


async def test_an_output_that_stops_before_its_limit_is_completed(
    client: openai.AsyncOpenAI,
) -> None:
    stop: Any = {"stop": ["z"]}
    response = await client.responses.create(input="xyz", max_output_tokens=50, extra_body=stop)
    assert response.status == "completed" and response.incomplete_details is None


async def test_a_response_goes_on_from_an_earlier_one(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    first = await client.responses.create(input="ab", instructions="One.", max_output_tokens=3)
    second = await client.responses.create(
        input="cd", instructions="Two.", previous_response_id=first.id, max_output_tokens=2
    )
    assert second.previous_response_id == first.id
    assert prompt_of(gateway) == "<system>Two.\n<user>ab\n<assistant>>tn\n<user>cd\n<assistant>"
    await client.responses.create(input="ef", previous_response_id=second.id, max_output_tokens=2)
    begins = "<user>ab\n<assistant>>tn\n<user>cd\n<assistant>>t\n<user>ef"
    assert prompt_of(gateway).startswith(begins)


async def test_a_streamed_response_is_kept_before_it_is_said_to_be_complete(
    client: openai.AsyncOpenAI,
) -> None:
    stream = await client.responses.create(input="ab", max_output_tokens=3, stream=True)
    async for event in stream:
        if event.type == "response.incomplete":
            kept = await client.responses.retrieve(event.response.id)
            assert kept.output_text == event.response.output_text


async def test_stored_responses_can_be_read_and_deleted_but_not_cancelled(
    client: openai.AsyncOpenAI,
) -> None:
    response = await client.responses.create(input="ab", max_output_tokens=3)
    assert await client.responses.retrieve(response.id) == response
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(response.id)
    await client.responses.delete(response.id)
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await ask(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.create(input="x", previous_response_id=response.id)
    assert caught.value.param == "previous_response_id"


async def test_store_false_keeps_nothing(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(input="ab", max_output_tokens=3, store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_as_many_responses_are_kept_as_there_is_room(run_gateway: GatewayFactory) -> None:
    async with run_gateway(limits=RequestLimits(max_stored_responses=2)) as gateway:
        ids = []
        for text in "abc":
            body = {"input": text, "max_output_tokens": 1}
            ids.append((await gateway.http.post("/v1/responses", json=body)).json()["id"])
        answers = [await gateway.http.get(f"/v1/responses/{each}") for each in ids]
        assert [answer.status_code for answer in answers] == [404, 200, 200]


async def test_a_form_of_the_text_reaches_the_engine_and_is_repeated(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    response = await client.responses.create(input="ab", max_output_tokens=2, text={"format": form})
    outputs = gateway.scheduler.adds[-1].sampling_params.structured_outputs
    assert json.loads(outputs.json_schema) == schema
    assert response.text is not None and response.text.format is not None
    assert response.text.format.type == "json_schema"


async def test_truncation_auto_keeps_the_end_of_what_does_not_fit(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    long = "x" * 2000
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(input=long, max_output_tokens=8)
    await client.responses.create(input=long, max_output_tokens=8, truncation="auto")
    assert prompt_of(gateway).endswith("xxx\n<assistant>")


async def test_a_failure_after_the_beginning_is_a_failed_response(
    gateway: Gateway,
) -> None:
    gateway.scheduler.frames_left = 2
    body = {"input": "ab", "stream": True, "max_output_tokens": 100}
    async with gateway.http.stream("POST", "/v1/responses", json=body) as answer:
        events = []
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
            if events and events[-1]["type"] == "response.output_text.delta":
                gateway.server.service.end_all()
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["message"]


async def test_a_client_that_leaves_aborts_its_response(gateway: Gateway) -> None:
    gateway.scheduler.frames_left = 2
    body = {"input": "ab", "stream": True, "max_output_tokens": 100}
    async with gateway.http.stream("POST", "/v1/responses", json=body) as answer:
        async for line in answer.aiter_lines():
            if "delta" in line:
                break
    await gateway.scheduler.until(lambda: gateway.scheduler.aborts)
    assert gateway.scheduler.aborts[0][1] == common_pb2.ABORT_REASON_CLIENT_GONE


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode"),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "f"}],
                }
            },
            "tool_choice.tools[0]",
        ),
        ({"truncation": "some"}, "truncation"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": 2**31}, "top_logprobs"),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 21},
            "top_logprobs",
        ),
        ({"stream_options": 5}, "stream_options"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 64),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"input": "x" * 2000}, "input"),
        ({"n": 2}, "n"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    body = {"input": "x", "max_output_tokens": 4} | fields
    answer = await gateway.http.post("/v1/responses", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert gateway.scheduler.adds == []


FUNCTION: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CALL = (
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
)


async def test_the_allowed_functions_are_those_that_are_shown(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    choice: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_weather"}],
    }
    functions = [FUNCTION, FUNCTION | {"name": "other"}]
    response = await client.responses.create(input="Hi", tools=functions, tool_choice=choice)
    (rendered,) = gateway.tokenizer.requests
    shown = [each["function"]["name"] for each in json.loads(rendered.tools_json)]
    assert shown == ["get_weather"]
    assert gateway.scheduler.adds[0].sampling_params.structured_outputs.json_schema
    assert response.model_dump()["tool_choice"] == choice
    assert len(response.tools) == 2


async def test_a_call_of_a_function_is_an_item_and_its_answer_goes_back(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.scheduler.script = CALL
    stream = await client.responses.create(input="Hi", tools=[FUNCTION], stream=True)
    events = [event async for event in stream]
    last = events[-1]
    assert last.type == "response.completed"
    message, call = last.response.output
    assert message.type == "message" and last.response.output_text == "Let me see."
    # The function is strict, so the text of a call keeps to its schema.
    assert gateway.scheduler.adds[0].sampling_params.structured_outputs.structural_tag
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Köln"}
    kinds = [event.type for event in events]
    assert kinds[-4:] == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    gateway.scheduler.script = "Rain."
    again = await client.responses.create(
        input=output, tools=[FUNCTION], previous_response_id=last.response.id
    )
    assert again.output_text == "Rain."
    turns = gateway.tokenizer.requests[-1].messages
    assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
    assert turns[1].content == "Let me see."
    assert json.loads(turns[1].tool_calls_json)[0]["id"] == turns[2].tool_call_id == call.call_id
    tools = json.loads(gateway.tokenizer.requests[-1].tools_json)
    assert tools[0]["function"] == {
        "name": "get_weather",
        "parameters": FUNCTION["parameters"],
    }


async def test_a_named_function_is_a_form_of_the_output(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.scheduler.script = '{"city": "Köln"}'
    response = await client.responses.create(
        input="Hi", tools=[FUNCTION], tool_choice={"type": "function", "name": "get_weather"}
    )
    (call,) = response.output
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Köln"}
    assert gateway.scheduler.adds[-1].sampling_params.HasField("structured_outputs")
    assert response.tool_choice == openai.types.responses.ToolChoiceFunction(
        type="function", name="get_weather"
    )


async def test_reasoning_is_an_item_of_its_own(run_gateway: GatewayFactory) -> None:
    messages = MessageConfig(reasoning_parser="qwen3")
    async with run_gateway(messages=messages) as gateway:
        gateway.scheduler.script = "<think>hm</think>so"
        url = f"{gateway.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            response = await client.responses.create(input="Hi", reasoning={"effort": "low"})
    reasoning, message = response.output
    assert reasoning.type == "reasoning" and message.type == "message"
    assert reasoning.content is not None and reasoning.content[0].text == "hm"
    assert response.output_text == "so"
    arguments = json.loads(gateway.tokenizer.requests[0].template_arguments_json)
    assert arguments["reasoning_effort"] == "low"


async def test_logprobs_come_where_they_are_included(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"input": "ab", "max_output_tokens": 3, "top_logprobs": 2}
    plain = await client.responses.create(**asked)
    response = await client.responses.create(**asked, include=["message.output_text.logprobs"])
    for each, num_tokens in ((plain, 0), (response, 3)):
        (message,) = each.output
        assert message.type == "message" and message.content[0].type == "output_text"
        logprobs = message.content[0].logprobs or []
        assert len(logprobs) == num_tokens
    assert logprobs[0].token == ">" and logprobs[0].logprob == -0.5
    assert len(logprobs[0].top_logprobs) == 2


async def test_the_input_of_a_kept_response_is_listed_in_pages(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    items: Any = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "So?"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    response = await client.responses.create(input=items, max_output_tokens=2)
    listed = await client.responses.input_items.list(response.id, order="asc", limit=2)
    found = [item async for item in listed]  # the client asks for page after page
    assert [item.type for item in found] == [
        *("message", "reasoning", "message", "function_call", "function_call_output")
    ]
    path = f"/v1/responses/{response.id}/input_items"
    answer = await gateway.http.get(path)
    check_answer(answer, "/v1/responses/{response_id}/input_items", "get")
    data = answer.json()["data"]
    assert [item["type"] for item in data] == [item.type for item in found[::-1]]
    assert data[-1] | {"id": ""} == {
        "id": "",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    assert (answer.json()["first_id"], answer.json()["has_more"]) == (data[0]["id"], False)
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_x"):
        refused = await gateway.http.get(f"{path}?{query}")
        assert refused.json()["error"]["param"] == query.partition("=")[0], query
    later = await client.responses.create(
        input="More", previous_response_id=response.id, max_output_tokens=2
    )
    (own,) = (await client.responses.input_items.list(later.id)).data
    assert own.model_dump()["content"][0]["text"] == "More"
    unknown = await gateway.http.get("/v1/responses/resp_x/input_items")
    assert unknown.status_code == 404
