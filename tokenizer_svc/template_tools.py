"""Tools for chat templates that know none: a default prompt, and calls and results as text.

The form is that of Hermes models, which small models follow best: calls are JSON in `<tool_call>`
tags, results come back in `<tool_response>` tags in the user's turn. `tool_call_format` says in
which form a model that was prompted by a template will call. Pure; Jinja is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

HERMES = "hermes"

_PROMPT = """\
# Tools

You can call the functions below to help the user. Their signatures are JSON schemas:
<tools>
{tools}
</tools>

To call a function, write its name and arguments as JSON within <tool_call></tool_call> tags, once \
for each call:
<tool_call>
{{"name": "function name", "arguments": {{"argument": "value"}}}}
</tool_call>"""

# By what a template tells the model to write, the surest first.
_MARKS = (
    ("<tool_call>", HERMES),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_start|>", "llama4_pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
    ("[func_name1(", "pythonic"),
)
# XML within the tags, which is another format.
_NOT_HERMES = ("<function=", "<arg_key>")


def tool_call_format(template: str, uses_tools: bool) -> str:
    """Return the name of the format in which a model calls under this template; "": not known.

    Args:
        template: The template's text.
        uses_tools: Whether it shows the tools; else the default prompt does.
    """
    if not uses_tools:
        return HERMES
    if any(mark in template for mark in _NOT_HERMES):
        return ""
    return next((name for mark, name in _MARKS if mark in template), "")


def with_tool_prompt(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], takes_system: bool
) -> list[Message]:
    """Return the messages with the tools described in the system message.

    Args:
        messages: Of the conversation; they stay as they are.
        tools: In OpenAI's form.
        takes_system: Whether the template shows a system message; else the first one of the user
            takes the text in.
    """
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    prompt = _PROMPT.format(tools=lines)
    first = messages[0] if messages else {}
    if first.get("role") == "system":
        return [{**first, "content": _joined(first.get("content"), prompt)}, *messages[1:]]
    if takes_system:
        return [{"role": "system", "content": prompt}, *messages]
    place = next((i for i, each in enumerate(messages) if each.get("role") == "user"), None)
    if place is None:
        return [{"role": "user", "content": prompt}, *messages]
    user = {**messages[place], "content": _joined(prompt, messages[place].get("content"))}
    return [*messages[:place], user, *messages[place + 1 :]]


def with_calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with calls in the assistant's text and results in the user's turn."""
    shown: list[Message] = []
    is_behind_result = False
    for message in messages:
        is_result = message.get("role") == "tool"
        if is_result:
            content = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
            if is_behind_result:
                # Templates want turns to alternate.
                shown[-1]["content"] += f"\n{content}"
            else:
                shown.append({"role": "user", "content": content})
        elif message.get("tool_calls"):
            shown.append(_with_calls(message))
        else:
            shown.append(dict(message))
        is_behind_result = is_result
    return shown


def _with_calls(message: Message) -> Message:
    calls = "\n".join(f"<tool_call>\n{_call(call)}\n</tool_call>" for call in message["tool_calls"])
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    content = message.get("content")
    return kept | {"content": _joined(content, calls, "\n") if content else calls}


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    shown = {"name": function.get("name", ""), "arguments": function["arguments"]}
    return json.dumps(shown, ensure_ascii=False)


def _joined(first: Any, second: Any, between: str = "\n\n") -> Any:
    """Two contents as one: texts as a text, parts as parts."""
    if isinstance(first, list) or isinstance(second, list):
        return [*_parts(first), *_parts(second)]
    return between.join(text for text in (first, second) if text)


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""
