"""Reasoning over real HTTP: told apart from the answer, in whole and in streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.message_config import MessageConfig
from pagewire.v1 import common_pb2
from tests.fakes.fake_tokenizer import FakeTokenizer
from tests.gateway.conftest import Gateway, GatewayFactory
from tests.gateway.http.test_chat_tools import CALLS, PATH, TOOLS, chat, post, stream

SCRIPT = "<think>\nHm, 1 < 2.\n</think>\n\nYes"


@pytest.fixture
async def qwen(run_gateway: GatewayFactory) -> AsyncIterator[Gateway]:
    async with run_gateway(messages=MessageConfig(reasoning_parser="qwen3")) as running:
        running.scheduler.script = SCRIPT
        yield running


async def test_reasoning_goes_out_under_both_names(qwen: Gateway) -> None:
    choice = await post(qwen)
    assert choice["message"] == {
        "role": "assistant",
        "content": "Yes",
        "refusal": None,
        "reasoning": "Hm, 1 < 2.",
        "reasoning_content": "Hm, 1 < 2.",
    }
    assert choice["finish_reason"] == "stop"


async def test_a_stream_of_reasoning_adds_up_to_the_whole(qwen: Gateway) -> None:
    deltas = [choice["delta"] for choice in await stream(qwen)]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == "Hm, 1 < 2."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes"


async def test_reasoning_can_be_left_out(qwen: Gateway) -> None:
    message = (await post(qwen, include_reasoning=False))["message"]
    assert message == {"role": "assistant", "content": "Yes", "refusal": None}
    deltas = [choice["delta"] for choice in await stream(qwen, include_reasoning=False)]
    assert not any("reasoning" in delta for delta in deltas)


async def test_an_answer_without_reasoning(qwen: Gateway) -> None:
    qwen.scheduler.script = "Yes"
    message = (await post(qwen))["message"]
    assert (message["content"], message["reasoning"]) == ("Yes", None)


async def test_reasoning_that_is_cut_off_has_no_content(qwen: Gateway) -> None:
    choice = await post(qwen, max_tokens=10)
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == (None, "Hm")
    assert choice["finish_reason"] == "length"


async def test_the_prompt_tells_where_the_output_begins(qwen: Gateway) -> None:
    qwen.scheduler.script = "Hm.</think>Yes"
    opened = [{"role": "assistant", "content": "<think>"}]
    closed = [{"role": "assistant", "content": "<think></think>Well."}]
    message = (await post(qwen, messages=opened, continue_final_message=True))["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes")
    message = (await post(qwen, messages=closed, continue_final_message=True))["message"]
    assert (message["reasoning"], message["content"]) == (None, "Hm.</think>Yes")


async def test_models_that_always_reason_need_no_opening_tag(run_gateway: GatewayFactory) -> None:
    async with run_gateway(messages=MessageConfig(reasoning_parser="deepseek_r1")) as gateway:
        gateway.scheduler.script = "Hm.\n</think>\nYes"
        message = (await post(gateway))["message"]
        assert (message["reasoning"], message["content"]) == ("Hm.", "Yes")


async def test_calls_come_behind_the_reasoning(qwen: Gateway) -> None:
    qwen.scheduler.script = f"<think>I may {CALLS}</think>{CALLS}"
    choice = await post(qwen, tools=TOOLS)
    assert choice["message"]["reasoning"] == f"I may {CALLS}"
    assert choice["message"]["content"] == "Let me see."
    assert len(choice["message"]["tool_calls"]) == 2
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": TOOLS, "tool_choice": "required"},
    ],
)
async def test_a_form_begins_behind_the_reasoning(qwen: Gateway, fields: dict[str, Any]) -> None:
    await post(qwen, max_tokens=1, **fields)
    form = qwen.scheduler.adds[0].sampling_params.structured_outputs
    assert (form.reasoning_start, form.reasoning_end) == ("<think>", "</think>")


async def test_a_form_begins_at_once_where_the_prompt_closes_the_reasoning(qwen: Gateway) -> None:
    messages = [{"role": "assistant", "content": "<think></think>{"}]
    fields = {"messages": messages, "continue_final_message": True, "max_tokens": 1}
    await post(qwen, response_format={"type": "json_object"}, **fields)
    form = qwen.scheduler.adds[0].sampling_params.structured_outputs
    assert (form.json_object, form.reasoning_end) == (True, "")


async def test_tags_of_several_tokens_give_no_count_of_reasoning_tokens(qwen: Gateway) -> None:
    usage = (await qwen.http.post(PATH, json=chat())).json()["usage"]
    assert "completion_tokens_details" not in usage


async def test_without_a_parser_all_is_content(gateway: Gateway) -> None:
    gateway.scheduler.script = SCRIPT
    message = (await post(gateway))["message"]
    assert message == {"role": "assistant", "content": SCRIPT, "refusal": None}


@pytest.mark.parametrize(
    ("effort", "arguments"),
    [
        ("high", {"reasoning_effort": "high"}),
        ("none", {"reasoning_effort": "none", "enable_thinking": False}),
    ],
)
async def test_the_effort_reaches_the_template(
    gateway: Gateway, effort: str, arguments: dict[str, Any]
) -> None:
    body = chat(reasoning_effort=effort, chat_template_kwargs={"x": 1}, max_tokens=1)
    assert (await gateway.http.post(PATH, json=body)).status_code == 200
    rendered = gateway.tokenizer.requests[0]
    assert json.loads(rendered.template_arguments_json) == arguments | {"x": 1}


def budget_of(gateway: Gateway) -> common_pb2.ThinkingBudget:
    """Of the last request."""
    budget: common_pb2.ThinkingBudget = gateway.scheduler.adds[-1].sampling_params.thinking_budget
    assert bytes(budget.start_token_ids) == b"<think>"
    assert bytes(budget.end_token_ids) == b"</think>"
    return budget


async def test_a_budget_reaches_the_engine_in_token_ids(qwen: Gateway) -> None:
    await post(qwen, thinking_token_budget=5)
    budget = budget_of(qwen)
    assert budget.max_tokens == 5 and not budget.HasField("num_open_tokens")


@pytest.mark.parametrize(("begun", "num_open"), [("<think>", 0), ("<think>\nHm", 3)])
async def test_a_budget_counts_the_reasoning_that_the_prompt_leaves_open(
    qwen: Gateway, begun: str, num_open: int
) -> None:
    messages = [{"role": "assistant", "content": begun}]
    await post(qwen, messages=messages, continue_final_message=True, thinking_token_budget=0)
    budget = budget_of(qwen)
    assert (budget.max_tokens, budget.num_open_tokens) == (0, num_open)
    assert budget.HasField("num_open_tokens")


async def test_what_a_user_writes_opens_no_reasoning(qwen: Gateway) -> None:
    messages = [{"role": "user", "content": "What does <think> do?"}]
    await post(qwen, messages=messages, thinking_token_budget=5)
    assert not budget_of(qwen).HasField("num_open_tokens")


async def test_models_that_always_reason_begin_with_it(run_gateway: GatewayFactory) -> None:
    async with run_gateway(messages=MessageConfig(reasoning_parser="deepseek_r1")) as gateway:
        await post(gateway, thinking_token_budget=5, max_tokens=1)
        assert budget_of(gateway).HasField("num_open_tokens")


async def test_each_prompt_of_completions_has_its_own_open_reasoning(qwen: Gateway) -> None:
    body = {"prompt": ["<think>ab", "ab"], "max_tokens": 1, "thinking_token_budget": 5}
    answer = await qwen.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    budgets = [add.sampling_params.thinking_budget for add in qwen.scheduler.adds]
    assert [budget.max_tokens for budget in budgets] == [5, 5]
    opened = [each.HasField("num_open_tokens") and each.num_open_tokens for each in budgets]
    assert opened == [2, False]


async def test_a_budget_without_a_bound_asks_for_nothing(gateway: Gateway) -> None:
    await post(gateway, thinking_token_budget=-1, max_tokens=1)
    assert not gateway.scheduler.adds[0].sampling_params.HasField("thinking_budget")


async def refusal(gateway: Gateway, **fields: Any) -> str:
    answer = await gateway.http.post(PATH, json=chat(**fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "thinking_token_budget"
    assert gateway.scheduler.adds == []
    message: str = error["message"]
    return message


@pytest.mark.parametrize("value", [-2, 1.5, True, "5", 2**31])
async def test_what_is_no_budget_is_refused(qwen: Gateway, value: Any) -> None:
    await refusal(qwen, thinking_token_budget=value)


async def test_a_budget_needs_a_parser(gateway: Gateway) -> None:
    assert "--reasoning-parser" in await refusal(gateway, thinking_token_budget=5)


async def test_a_budget_needs_tags_that_the_tokenizer_can_spell(
    run_gateway: GatewayFactory,
) -> None:
    config = MessageConfig(reasoning_parser="qwen3")
    async with run_gateway(tokenizer=WithoutTags(), messages=config) as gateway:
        assert "</think>" in await refusal(gateway, thinking_token_budget=5)


class WithoutTags(FakeTokenizer):
    """Its vocabulary has no angle brackets: they are lost."""

    async def Encode(self, request: Any, context: Any) -> Any:
        for index, text in enumerate(request.texts):
            request.texts[index] = text.replace("<", "").replace(">", "")
        return await super().Encode(request, context)
