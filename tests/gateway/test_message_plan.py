from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import pytest

from gateway.generation import ChatMessage, ChatPrompt, GenerationRequest
from gateway.message_config import MessageConfig
from gateway.message_plan import MessagePlanner
from gateway.message_request import MessageRequest, tools_of
from gateway.reasoning.registry import NONE, REASONING_STYLES
from gateway.reasoning.think_tags import Begin
from gateway.tools.registry import AUTO, TOOL_FORMATS
from gateway.tools.tool import Tool, ToolChoice
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, StructuredOutputs

TOOLS = tools_of([{"type": "function", "function": {"name": "f"}}])
PROMPT = ChatPrompt((ChatMessage("user", "Hi"),))


def request(choice: ToolChoice = ToolChoice.NONE, **sampling: Any) -> GenerationRequest:
    message = MessageRequest(TOOLS, choice)
    return GenerationRequest("", (PROMPT,), sampling=sampling, message=message)


def test_the_settings_name_what_the_registries_have() -> None:
    hints = get_type_hints(MessageConfig)
    assert set(get_args(hints["tool_call_parser"])) == {AUTO, *TOOL_FORMATS}
    assert set(get_args(hints["reasoning_parser"])) == {NONE, *REASONING_STYLES}


@pytest.mark.parametrize("choice", [ToolChoice.REQUIRED, ToolChoice.NAMED])
def test_a_forced_call_is_a_form(choice: ToolChoice) -> None:
    prepared = MessagePlanner(MessageConfig()).prepare(request(choice, top_k=3), "hermes")
    assert prepared.sampling["structured_outputs"].json_schema
    assert prepared.sampling["top_k"] == 3


def test_special_tokens_are_text_where_they_may_mark_calls() -> None:
    planner = MessagePlanner(MessageConfig())
    assert planner.prepare(request(ToolChoice.AUTO), "hermes").sampling == {
        "skip_special_tokens": False
    }
    mine = request(ToolChoice.AUTO, skip_special_tokens=True)
    assert planner.prepare(mine, "hermes").sampling == {"skip_special_tokens": True}
    assert planner.prepare(request(), "hermes").sampling == {}


@pytest.mark.parametrize("choice", [ToolChoice.AUTO, ToolChoice.REQUIRED, ToolChoice.NAMED])
def test_a_form_excludes_calls(choice: ToolChoice) -> None:
    form = StructuredOutputs(json_object=True)
    planner = MessagePlanner(MessageConfig())
    with pytest.raises(InvalidRequestError) as caught:
        planner.prepare(request(choice, structured_outputs=form), "hermes")
    assert caught.value.field == "tools"
    assert planner.prepare(request(structured_outputs=form), "hermes")


@pytest.mark.parametrize(
    ("style", "tail", "begin", "start", "end"),
    [
        ("none", "<think>\n", None, "", ""),
        ("qwen3", "assistant\n", Begin.EITHER, "<think>", "</think>"),
        ("qwen3", "assistant\n<think>\n", Begin.REASONING, "", "</think>"),
        ("qwen3", "<think>\n\n</think>\n\n", Begin.ANSWER, "", ""),
        ("deepseek_r1", "assistant\n", Begin.REASONING, "", "</think>"),
    ],
)
def test_a_form_begins_behind_the_reasoning_if_there_is_one(
    style: Any, tail: str, begin: Begin | None, start: str, end: str
) -> None:
    planner = MessagePlanner(MessageConfig(reasoning_parser=style))
    reader = planner.reader(request(), "", tail)
    assert reader.begin is begin
    form = StructuredOutputs(regex="a")
    found = reader.form_behind_reasoning(SamplingParams(structured_outputs=form))
    wanted = StructuredOutputs(regex="a", reasoning_start=start, reasoning_end=end)
    assert found.structured_outputs == wanted
    assert reader.form_behind_reasoning(SamplingParams()) == SamplingParams()


def test_strict_tools_have_a_form_where_the_format_marks_calls() -> None:
    tools = (Tool("f", {"properties": {}}, strict=True), Tool("g", {"properties": {}}))
    message = MessageRequest(tools, ToolChoice.AUTO)
    strict = GenerationRequest("", (PROMPT,), message=message)
    planner = MessagePlanner(MessageConfig())
    form = planner.prepare(strict, "hermes").sampling["structured_outputs"]
    tag = json.loads(form.structural_tag)
    assert tag["format"]["triggers"] == ["<tool_call>"]
    first, second = tag["format"]["tags"]
    assert first["begin"] == '<tool_call>\n{"name": "f", "arguments": '
    assert first["content"]["json_schema"] == {"type": "object", "properties": {}}
    assert first["end"] == "}\n</tool_call>"
    assert second["content"]["json_schema"] == {"type": "object"}
    for shown in ("mistral", "pythonic"):
        with pytest.raises(InvalidRequestError, match="strict") as caught:
            planner.prepare(strict, shown)
        assert caught.value.field == "tools"


def test_calls_of_some_tools_only_have_a_form_where_there_is_one() -> None:
    message = MessageRequest((Tool("f"),), ToolChoice.AUTO, only_these=True)
    some = GenerationRequest("", (PROMPT,), message=message)
    planner = MessagePlanner(MessageConfig())
    assert planner.prepare(some, "llama3_json").sampling["structured_outputs"].structural_tag
    assert "structured_outputs" not in planner.prepare(some, "pythonic").sampling


def test_what_is_no_chat_is_all_content() -> None:
    planner = MessagePlanner(MessageConfig(reasoning_parser="deepseek_r1"))
    plain = GenerationRequest("", ("text",))
    assert planner.prepare(plain, "hermes") is plain
    assert planner.reader(plain, "hermes", "").begin is None
