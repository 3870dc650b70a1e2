"""The Jinja environment that chat templates run in: what transformers offers them, with limits.

A sandbox that lets templates read and not write. Loops, `~`, operators and the methods of strings
pass through `template_limits`. Knows nothing of conversations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenizer_svc.template_limits import budget, check_format, using


def render(template: str, variables: dict[str, Any], max_chars: int) -> str:
    """Render a template text.

    Args:
        template: The template's text; compiled once, then cached.
        variables: What it sees.
        max_chars: Most characters of output, and of every string on the way there.

    Raises:
        TemplateError: The template is wrong, raises, or goes past a limit.
    """
    compiled = _compiled(template)
    parts: list[str] = []
    num_chars = 0
    with using(max_chars) as limits:
        for part in compiled.generate(**variables):
            num_chars += len(part)
            limits.check_size(num_chars)
            limits.check_time()
            parts.append(part)
    return "".join(parts)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (declared by Jinja as an instance's)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with limits; see the module."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget().check_operator(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, (str, list, tuple)):
            budget().check_size(len(result))
        return result

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            name = getattr(function, "__name__", "")
            budget().check_method(name, owner, (*args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_format(value.__self__)
        return wrapped

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = self._through("_counted", loop.iter)
        for concat in list(source.find_all(nodes.Concat)):
            parts = nodes.List(concat.nodes, lineno=concat.lineno)
            concat.nodes = [self._through("_concatenated", parts)]
        return super()._generate(source, *args, **kwargs)

    def _through(self, name: str, node: nodes.Node) -> nodes.Filter:
        """The expression `node | name`."""
        wrapped = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        wrapped.set_environment(self)
        return wrapped


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    return budget().count(items)


def _concatenated(items: list[Any]) -> str:
    texts = [str(item) for item in items]
    budget().check_size(sum(map(len, texts)))
    return "".join(texts)


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    text = str(value)
    budget().check_replace(text, old, new)
    return text.replace(old, new, count)


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [make_attrgetter(ENVIRONMENT, attribute)(item) for item in items]
    budget().check_join(items, d)
    return str(d).join(map(str, items))


def _center(value: Any, width: int = 80) -> str:
    budget().check_method("center", "", (width,))
    return str(value).center(width)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    check_format(str(value))
    return str(value) % (kwargs or args)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    budget().check_method("indent", "", (width,))
    step = " " * width if isinstance(width, int) else width
    text = str(value)
    budget().check_replace(text, "\n", step)
    lines = [step + line if blank or line.strip() else line for line in text.split("\n")]
    return "\n".join(lines).removeprefix("" if first else step)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML and sorts keys: neither is what models were trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _environment() -> ChatTemplateEnvironment:
    environment = ChatTemplateEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters.update(
        tojson=_tojson,
        replace=_replace,
        join=_join,
        center=_center,
        format=_format,
        indent=_indent,
        _counted=_counted,
        _concatenated=_concatenated,
    )
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


ENVIRONMENT = _environment()


@contextmanager
def reading_template() -> Iterator[None]:
    """Turn what Python and Jinja make of a text that is no template of use into a syntax error.

    Raises:
        TemplateSyntaxError: In place of any of it.
    """
    try:
        yield
    except (RecursionError, MemoryError) as error:
        raise TemplateSyntaxError("it nests too deeply", 1) from error
    except (SyntaxError, ValueError, OverflowError) as error:
        # Of Python's compiler: blocks in blocks, a number of thousands of digits.
        raise TemplateSyntaxError("it cannot be compiled", 1) from error


@lru_cache(maxsize=64)
def _compiled(template: str) -> Template:
    with reading_template():
        return ENVIRONMENT.from_string(template)
