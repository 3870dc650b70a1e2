from __future__ import annotations

from typing import Any

import pytest

from pagewire.kit.errors import InvalidRequestError
from tokenizer_svc.chat_template import ChatRequest, ChatTemplates, template_facts
from tokenizer_svc.model_tokenizer import ModelTokenizer

PLAIN = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TRIMMING = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</m>{% endfor %}"
TOOLS = PLAIN + "{% if tools %}{{ tools | tojson }}{% endif %}"
PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
USER = {"role": "user", "content": "hi"}


def templates(default: str = PLAIN, **others: str) -> ChatTemplates:
    return ChatTemplates({"default": default, **others}, {"bos_token": "<s>"})


def render(template: str, messages: list[Any] | None = None, **options: Any) -> str:
    request = ChatRequest(messages=messages or [USER], **options)
    return templates(template).render(request, max_chars=10_000)


def refuse(field: str, call: Any, match: str = ".") -> None:
    with pytest.raises(InvalidRequestError, match=match) as caught:
        call()
    assert caught.value.field == field


def test_a_conversation_is_rendered() -> None:
    assert render(PLAIN) == "<s>[user]hi[assistant]"


def test_the_generation_prompt_can_be_left_out() -> None:
    assert render(PLAIN, add_generation_prompt=False) == "<s>[user]hi"


def test_tools_reach_the_template() -> None:
    assert render(TOOLS, tools=[TOOL]).endswith('"f", "parameters": {}}}]')


def test_no_tools_are_none() -> None:
    assert render("{{ tools is none }}{% if tools %}{% endif %}") == "True"


def test_a_template_without_tools_gets_a_prompt_for_them() -> None:
    text = render(PLAIN, tools=[TOOL])
    assert text.startswith("<s>[system]# Tools")
    assert '\n{"type": "function", "function": {"name": "f", "parameters": {}}}\n' in text
    assert "<tool_call>" in text
    assert text.endswith("[user]hi[assistant]")


def test_the_prompt_for_tools_joins_the_system_message() -> None:
    text = render(PLAIN, [{"role": "system", "content": "Be brief."}, USER], tools=[TOOL])
    assert text.startswith("<s>[system]Be brief.\n\n# Tools")


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + PLAIN,
        "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}",
    ],
)
def test_a_template_without_system_messages_has_the_prompt_in_the_users(template: str) -> None:
    text = render(template, tools=[TOOL])
    assert "[user]# Tools" in text
    assert "</tool_call>\n\nhi" in text


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"é": [1]}}}
HISTORY = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "4", "tool_call_id": "1"},
    {"role": "tool", "content": [{"type": "text", "text": "5"}], "tool_call_id": "1"},
]
CALL_TEXT = '<tool_call>\n{"name": "f", "arguments": {"é": [1]}}\n</tool_call>'


@pytest.mark.parametrize("tools", [(), (TOOL,)])
def test_calls_and_results_reach_a_template_that_knows_none(tools: Any) -> None:
    text = render(PLAIN, HISTORY, tools=tools)
    assert text.endswith(
        f"[user]hi[assistant]{CALL_TEXT}\n{CALL_TEXT}"
        "[user]<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response>"
        "[assistant]"
    )


def test_calls_and_results_reach_a_template_that_knows_them_as_they_are() -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.tool_calls | tojson }}{% endfor %}"
    text = render(template.replace("m.tool_calls", "(m.tool_calls or 0)"), HISTORY)
    assert text.count('"arguments": {"é": [1]}') == 2
    assert text.endswith("[tool]0[tool]0")


def test_the_format_of_calls_is_that_of_the_template() -> None:
    uses = "{{ tools }}"
    assert templates(PLAIN).tool_call_format == "hermes"
    assert templates(uses + "<tool_call>").tool_call_format == "hermes"
    assert templates(uses + "<tool_call><function=f>").tool_call_format == ""
    assert templates(uses + "[TOOL_CALLS]").tool_call_format == "mistral"
    assert templates(uses + "<|python_tag|>").tool_call_format == "llama3_json"
    assert templates(uses).tool_call_format == ""
    assert templates(PLAIN, tool_use=uses + "[TOOL_CALLS]").tool_call_format == "mistral"
    assert ChatTemplates({}, {}).tool_call_format == ""


def test_the_tool_template_is_used_for_tools() -> None:
    both = templates(PLAIN, tool_use="T{{ tools[0].function.name }}")
    assert both.render(ChatRequest([USER], tools=[TOOL]), 100) == "Tf"
    assert both.render(ChatRequest([USER]), 100) == "<s>[user]hi[assistant]"
    assert both.uses_tools


def test_whether_tools_are_used_is_known() -> None:
    assert templates(TOOLS).uses_tools
    assert not templates(PLAIN).uses_tools


def test_template_arguments_reach_the_template() -> None:
    assert render("{{ enable_thinking }}", template_arguments={"enable_thinking": False}) == "False"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_template_arguments_cannot_replace_the_conversation(name: str) -> None:
    refuse("template_arguments", lambda: render(PLAIN, template_arguments={name: []}))


def test_text_parts_become_one_string_for_templates_of_strings() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(PLAIN, [{"role": "user", "content": parts}]) == "<s>[user]a\nb[assistant]"


def test_text_parts_stay_for_templates_of_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(PARTS, [{"role": "user", "content": parts}, USER]) == "<a><b>hi"


def test_other_parts_are_refused() -> None:
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    refuse("messages.content", lambda: render(PLAIN, [{"role": "user", "content": image}]))


def test_the_messages_of_the_caller_stay_as_they_are() -> None:
    message = {"role": "assistant", "content": [{"type": "text", "text": "a"}]}
    options = {"continue_final_message": True, "add_generation_prompt": False}
    render(PARTS, [message], **options)
    assert message["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("content", ["So far", "So far ", " So", "hi", "[user]"])
def test_a_final_message_is_left_open(content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    text = render(
        PLAIN + "</end>", messages, continue_final_message=True, add_generation_prompt=False
    )
    assert text == f"<s>[user]hi[assistant]{content}"


def test_a_final_message_that_the_template_trims_is_left_open_trimmed() -> None:
    messages = [{"role": "assistant", "content": " So far "}]
    text = render(TRIMMING, messages, continue_final_message=True, add_generation_prompt=False)
    assert text == "[assistant]So far"


def test_a_final_message_of_parts_is_left_open() -> None:
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
    text = render(PARTS, messages, continue_final_message=True, add_generation_prompt=False)
    assert text == "<a"


def test_continuing_excludes_the_generation_prompt() -> None:
    refuse("continue_final_message", lambda: render(PLAIN, continue_final_message=True))


@pytest.mark.parametrize("content", [None, 3])
def test_continuing_needs_text(content: Any) -> None:
    options = {"continue_final_message": True, "add_generation_prompt": False}
    messages = [{"role": "assistant", "content": content}]
    refuse("continue_final_message", lambda: render(PLAIN, messages, **options))


def test_continuing_needs_a_template_that_shows_the_message() -> None:
    options = {"continue_final_message": True, "add_generation_prompt": False}
    refuse("continue_final_message", lambda: render("x", **options), "does not show")


def test_a_refusal_of_the_template_is_told() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    refuse("messages", lambda: render(template), "roles must alternate")


@pytest.mark.parametrize(
    "template",
    ["{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ messages[9].x }}", "{{ {}.x.y }}", "{{ [] | first | int }}"
     "{{ messages.x() }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"],
)  # fmt: skip
def test_a_failing_template_is_the_requests_error(template: str) -> None:
    refuse("messages", lambda: render(template))


def test_too_much_text_is_refused() -> None:
    messages = [{"role": "user", "content": "a" * 10_001}]
    refuse("messages", lambda: render(PLAIN, messages), "10000 characters")


def test_half_a_surrogate_pair_is_refused() -> None:
    messages = [{"role": "user", "content": "\ud800"}]
    refuse("messages", lambda: render(PLAIN, messages), "surrogate")


def test_a_template_of_the_request_is_used() -> None:
    assert render(PLAIN, chat_template="X{{ messages | length }}") == "X1"


def test_a_template_that_is_no_jinja_is_refused() -> None:
    refuse("chat_template", lambda: render(PLAIN, chat_template="{% for %}"), "line 1")


def test_a_model_without_template_says_what_to_do() -> None:
    refuse(
        "messages",
        lambda: ChatTemplates({}, {}).render(ChatRequest([USER]), 100),
        "--chat-template",
    )


def test_facts_see_how_content_is_used() -> None:
    assert template_facts(PARTS).iterates_content
    assert template_facts(
        "{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}"
    ).iterates_content
    assert not template_facts(PLAIN).iterates_content


CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [
        USER,
        {"role": "assistant", "content": "Hello\n"},
        {"role": "user", "content": " <b> \u00e9 "},
    ],
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("template", [None, PLAIN, TRIMMING, PARTS, TOOLS])
def test_text_is_that_of_transformers(
    smollm2: ModelTokenizer,
    transformers: Any,
    messages: list[dict[str, Any]],
    add_generation_prompt: bool,
    template: str | None,
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    text = template or smollm2.chat_templates["default"]
    [expected], _ = render_jinja_template(
        conversations=[messages],
        chat_template=text,
        add_generation_prompt=add_generation_prompt,
        **smollm2.special_tokens,
    )
    ours = ChatTemplates({"default": text}, smollm2.special_tokens)
    request = ChatRequest(messages, add_generation_prompt=add_generation_prompt)
    assert ours.render(request, 10_000) == expected


@pytest.mark.parametrize("content", ["So far", "So far ", " So", "a\n"])
@pytest.mark.parametrize("template", [None, PLAIN, TRIMMING, PARTS])
def test_a_continued_message_is_that_of_transformers(
    smollm2: ModelTokenizer, transformers: Any, content: str, template: str | None
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    text = template or smollm2.chat_templates["default"]
    messages = [USER, {"role": "assistant", "content": content}]
    [expected], _ = render_jinja_template(
        conversations=[messages],
        chat_template=text,
        continue_final_message=True,
        **smollm2.special_tokens,
    )
    ours = ChatTemplates({"default": text}, smollm2.special_tokens)
    request = ChatRequest(messages, add_generation_prompt=False, continue_final_message=True)
    assert ours.render(request, 10_000) == expected
