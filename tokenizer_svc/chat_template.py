"""A conversation to the text that a model was trained on.

Owns a model's chat templates: which one is used, what it sees, and what its errors mean to the
client. The Jinja environment is `template_environment`'s. Knows nothing of token ids and protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.meta import find_undeclared_variables

from pagewire.kit.errors import InvalidRequestError
from tokenizer_svc.template_environment import ENVIRONMENT, reading_template, render
from tokenizer_svc.template_tools import tool_call_format, with_calls_as_text, with_tool_prompt

Message = Mapping[str, Any]

DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"
# Stands behind the final message while rendering, so that its end is found whatever it contains.
# The space behind it tells whether the template trims messages.
_END_MARK = "\u2063pagewire-end-of-final-message\u2063"
_PROBE = "pagewire probes for system messages"
_MAX_PROBE_CHARS = 65_536
_RESERVED = frozenset(
    ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template")
)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One conversation to render."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    """A template in place of the model's own."""
    add_special_tokens: bool = False
    """Whether the rendered text gets the tokens that the model wants at the start."""


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """A model's templates by name; `default` is the main one."""

    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]

    @property
    def uses_tools(self) -> bool:
        """Whether tools given to this model reach its prompt."""
        if TOOL_TEMPLATE in self.templates:
            return True
        return any(template_facts(text).uses_tools for text in self.templates.values())

    @property
    def tool_call_format(self) -> str:
        """The format in which the model calls tools, as far as its template shows; "": unknown."""
        name = TOOL_TEMPLATE if TOOL_TEMPLATE in self.templates else DEFAULT_TEMPLATE
        template = self.templates.get(name)
        if template is None:
            return ""
        return tool_call_format(template, template_facts(template).uses_tools)

    def render(self, request: ChatRequest, max_chars: int) -> str:
        """The prompt's text.

        Raises:
            InvalidRequestError: The conversation is not one that the template takes, or the model
                has no template.
        """
        template = self._template(request)
        facts = _facts(template)
        messages = [_message(message, facts.iterates_content) for message in request.messages]
        if not facts.uses_tool_calls:
            messages = with_calls_as_text(messages)
        if request.tools and not facts.uses_tools:
            takes_system = _takes_system(template, tuple(self.special_tokens.items()))
            messages = with_tool_prompt(messages, request.tools, takes_system)
        if request.continue_final_message:
            _mark_end(messages, request)
        variables = {
            **self.special_tokens,
            **_arguments(request.template_arguments),
            "messages": messages,
            "tools": list(request.tools) or None,
            "documents": request.template_arguments.get("documents"),
            "add_generation_prompt": request.add_generation_prompt,
        }
        text = _render(template, variables, max_chars)
        return _cut_at_mark(text) if request.continue_final_message else text

    def _template(self, request: ChatRequest) -> str:
        if request.chat_template is not None:
            return request.chat_template
        if request.tools and TOOL_TEMPLATE in self.templates:
            return self.templates[TOOL_TEMPLATE]
        if DEFAULT_TEMPLATE in self.templates:
            return self.templates[DEFAULT_TEMPLATE]
        raise InvalidRequestError(
            "the model has no chat template; send a prompt in place of messages, or start "
            "`pagewire serve`, or the tokenizer service, with --chat-template FILE",
            reason="NO_CHAT_TEMPLATE",
            field="messages",
        )


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What a template's text says about how to feed it."""

    uses_tools: bool
    uses_tool_calls: bool
    """Whether it shows the calls of an assistant's message."""
    iterates_content: bool
    """Whether it goes through a message's content part by part."""


@lru_cache(maxsize=64)
def template_facts(template: str) -> TemplateFacts:
    """Parse a template.

    Raises:
        TemplateSyntaxError: It is not a Jinja template.
    """
    with reading_template():
        tree = ENVIRONMENT.parse(template)
        return TemplateFacts(
            uses_tools="tools" in find_undeclared_variables(tree),
            uses_tool_calls=_reads(tree, "tool_calls"),
            iterates_content=any(_is_content(loop.iter) for loop in tree.find_all(nodes.For)),
        )


def _is_content(node: nodes.Node) -> bool:
    return _is_member(node, "content") or (isinstance(node, nodes.Name) and node.name == "content")


def _reads(tree: nodes.Template, name: str) -> bool:
    members = (nodes.Getattr, nodes.Getitem)
    return any(_is_member(node, name) for node in tree.find_all(members))


def _is_member(node: nodes.Node, name: str) -> bool:
    if isinstance(node, nodes.Getattr):
        return bool(node.attr == name)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return bool(node.arg.value == name)
    return False


@lru_cache(maxsize=64)
def _takes_system(template: str, special_tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether the template shows a system message; some refuse it, some drop it."""
    messages = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "Hello"}]
    variables = {**dict(special_tokens), "messages": messages, "add_generation_prompt": True}
    try:
        return _PROBE in render(template, variables, _MAX_PROBE_CHARS)
    except Exception:
        # Whatever a template does with a probe is no error of the request.
        return False


def _facts(template: str) -> TemplateFacts:
    try:
        return template_facts(template)
    except TemplateSyntaxError as error:
        raise InvalidRequestError(
            f"the chat template is not valid Jinja: {error.message} (line {error.lineno})",
            reason="CHAT_TEMPLATE_INVALID",
            field="chat_template",
        ) from error


def _message(message: Message, iterates_content: bool) -> dict[str, Any]:
    """A copy; text parts become one string for templates that know only strings."""
    copy = dict(message)
    content = copy.get("content")
    if isinstance(content, (list, tuple)):
        if not all(isinstance(part, Mapping) and "text" in part for part in content):
            raise InvalidRequestError(
                "only text parts can be rendered", reason="PART_NOT_TEXT", field="messages.content"
            )
        parts = [dict(part) for part in content]
        copy["content"] = parts if iterates_content else "\n".join(str(p["text"]) for p in parts)
    return copy


def _mark_end(messages: list[dict[str, Any]], request: ChatRequest) -> None:
    if request.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other",
            field="continue_final_message",
        )
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list) and content:
        content[-1]["text"] = f"{content[-1]['text']}{_END_MARK} "
    elif isinstance(content, str):
        messages[-1]["content"] = f"{content}{_END_MARK} "
    else:
        raise InvalidRequestError(
            "continue_final_message needs a final message with text",
            field="continue_final_message",
        )


def _cut_at_mark(text: str) -> str:
    head, mark, rest = text.rpartition(_END_MARK)
    if not mark:
        raise InvalidRequestError(
            "the chat template does not show the final message, so it cannot be continued",
            field="continue_final_message",
        )
    return head if rest.startswith(" ") else head.rstrip()


def _arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    reserved = _RESERVED.intersection(arguments)
    if reserved:
        raise InvalidRequestError(
            f"template arguments cannot replace {', '.join(sorted(reserved))}",
            field="template_arguments",
        )
    return arguments


def _render(template: str, variables: dict[str, Any], max_chars: int) -> str:
    try:
        text = render(template, variables, max_chars)
        text.encode()  # half a surrogate pair can come in through JSON, and is no text
    except TemplateError as error:
        message = error.message or "it gives no reason"
        raise InvalidRequestError(
            f"the chat template refuses this conversation: {message}",
            reason="CHAT_TEMPLATE_REFUSED",
            field="messages",
        ) from error
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "the conversation has half a surrogate pair, which is not text", field="messages"
        ) from error
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise InvalidRequestError(
            f"the chat template cannot take this conversation ({type(error).__name__}); "
            "check the form of messages, tools and template arguments",
            reason="CHAT_TEMPLATE_FAILED",
            field="messages",
        ) from error
    except (RecursionError, MemoryError, OverflowError) as error:
        raise InvalidRequestError(
            "the chat template needs too much memory for this conversation",
            reason="CHAT_TEMPLATE_REFUSED",
            field="messages",
        ) from error
    return text
