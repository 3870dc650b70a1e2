"""`/v1/chat/completions` over real HTTP, with fakes behind the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.kit.errors import InvalidRequestError
from tests.fakes.fake_scheduler import MAX_MODEL_LEN, MODEL
from tests.fakes.fake_tokenizer import decode, encode
from tests.gateway.conftest import Gateway

PROMPT = "<user>Hi\n<assistant>"


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": MODEL, "messages": messages, "max_tokens": 5, "temperature": 0} | fields


async def test_an_answer_has_openais_shape(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 200, answer.text
    value = answer.json()
    assert value["id"].startswith("chatcmpl-")
    assert value["object"] == "chat.completion"
    choice = value["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": ">tnat"[:1] + PROMPT[::-1][1:5],
        "refusal": None,
    }
    assert choice["finish_reason"] == "length"
    assert value["usage"]["prompt_tokens"] == len(PROMPT)


async def test_a_stream_begins_with_the_role_of_each_choice(gateway: Gateway) -> None:
    body = chat(stream=True, n=2, temperature=1)
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    lines = [line for line in answer.text.splitlines() if line]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    roles = [chunk["choices"][0] for chunk in chunks[:2]]
    assert [(r["index"], r["delta"]) for r in roles] == [
        (index, {"role": "assistant", "content": ""}) for index in (0, 1)
    ]
    for index in (0, 1):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(c["delta"].get("content", "") for c in mine) == PROMPT[::-1][:5]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]


async def test_without_max_tokens_the_rest_of_the_context_is_used(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/chat/completions", json=chat(max_tokens=None))
    assert answer.json()["usage"]["completion_tokens"] == MAX_MODEL_LEN - len(PROMPT)


async def test_max_completion_tokens_wins_over_max_tokens(gateway: Gateway) -> None:
    body = chat(max_tokens=5, max_completion_tokens=2)
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    assert answer.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [0, MAX_MODEL_LEN])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_that_is_refused_is_named_as_it_was_given(
    gateway: Gateway, name: str, limit: int, stream: bool
) -> None:
    body = chat(stream=stream, **{name: limit})
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert name in error["message"]


async def test_parts_of_text_become_lines_and_developer_becomes_system(gateway: Gateway) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[{"role": "developer", "content": parts}])
    await gateway.http.post("/v1/chat/completions", json=body)
    assert decode(gateway.scheduler.adds[0].prompt_token_ids) == "<system>a\nb\n<assistant>"


async def test_the_final_message_can_be_continued(gateway: Gateway) -> None:
    messages = [{"role": "assistant", "content": "I am"}]
    body = chat(messages=messages, continue_final_message=True)
    await gateway.http.post("/v1/chat/completions", json=body)
    assert list(gateway.scheduler.adds[0].prompt_token_ids) == encode("<assistant>I am")


async def test_template_arguments_reach_the_template(gateway: Gateway) -> None:
    await gateway.http.post(
        "/v1/chat/completions", json=chat(chat_template_kwargs={"think": False})
    )
    rendered = gateway.tokenizer.requests[0]
    assert json.loads(rendered.template_arguments_json) == {"think": False}


async def test_an_error_of_the_template_names_the_field_of_the_body(gateway: Gateway) -> None:
    gateway.tokenizer.chat_error = InvalidRequestError(
        "template_arguments: cannot be messages", field="template_arguments"
    )
    answer = await gateway.http.post("/v1/chat/completions", json=chat())
    error = answer.json()["error"]
    assert error["param"] == "chat_template_kwargs"
    assert error["message"] == "chat_template_kwargs: cannot be messages"


DEEP_CALL = {"function": {"name": "f", "arguments": '{"a":' * 300 + "1" + "}" * 300}}
BAD = [
    ("messages", {"messages": []}),
    ("messages", {"messages": None}),
    ("messages", {"messages": "Hi"}),
    ("messages[0]", {"messages": ["Hi"]}),
    ("messages[0].role", {"messages": [{"content": "x"}]}),
    ("messages[0].role", {"messages": [{"role": "robot", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 1}]}),
    (
        "messages[0].content[0].type",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ),
    ("messages", {"messages": [{"role": "user", "content": "x" * MAX_MODEL_LEN}]}),
    ("max_tokens", {"max_tokens": 10**6}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("logprobs", {"logprobs": 1}),
    ("logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("continue_final_message", {"continue_final_message": True, "add_generation_prompt": True}),
    ("seed", {"seed": [1]}),
    (
        "messages[0].tool_calls[0].function.arguments",
        {"messages": [{"role": "assistant", "tool_calls": [DEEP_CALL]}]},
    ),
]


@pytest.mark.parametrize(("param", "fields"), BAD)
async def test_bad_fields_are_400_and_named(
    gateway: Gateway, param: str, fields: dict[str, Any]
) -> None:
    answer = await gateway.http.post("/v1/chat/completions", json=chat(**fields))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert gateway.scheduler.adds == []
