"""How much work one rendering of a chat template may do.

A template comes with a model, sometimes with a request: loops, strings and numbers in it are
bounded here, before they are made. `using` sets the budget of the rendering thread; the Jinja
environment asks for checks through `budget()`. Knows nothing of Jinja's syntax or of conversations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any

from jinja2 import TemplateError

MAX_ROUNDS = 1_000_000
MAX_SECONDS = 5.0
_MAX_NUMBER = 1 << 64
_MAX_WIDTH = 10_000
_ROUNDS_BETWEEN_CLOCKS = 1024
_NUMBERS = re.compile(r"\d+")


class TemplateLimitError(TemplateError):
    """The template works longer, or makes more text, than a conversation can need."""


@dataclass(slots=True)
class RenderBudget:
    """What one rendering may still use. Owned by the thread that renders."""

    max_chars: int
    deadline_s: float
    """On the monotonic clock."""
    num_rounds: int = 0

    def count(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each a round of a loop."""
        for item in items:
            self.num_rounds += 1
            if self.num_rounds > MAX_ROUNDS:
                raise TemplateLimitError(f"its loops run more than {MAX_ROUNDS} rounds")
            if self.num_rounds % _ROUNDS_BETWEEN_CLOCKS == 0:
                self.check_time()
            yield item

    def check_time(self) -> None:
        if monotonic() > self.deadline_s:
            raise TemplateLimitError(f"it takes longer than {MAX_SECONDS} s")

    def check_size(self, num_chars: int) -> None:
        if num_chars > self.max_chars:
            raise TemplateLimitError(f"it makes more than {self.max_chars} characters")

    def check_operator(self, operator: str, left: Any, right: Any) -> None:
        """Before a binary operator is applied."""
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._check_number(abs(left) ** min(right, 64) if abs(left) < 1024 else _MAX_NUMBER)
        elif operator == "%" and isinstance(left, str):
            check_format(left)
        elif operator == "*":
            self._check_product(left, right)

    def check_method(self, name: str, text: str, arguments: tuple[Any, ...]) -> None:
        """Before a string's method is called."""
        if name == "replace" and len(arguments) >= 2:
            self.check_replace(text, str(arguments[0]), str(arguments[1]))
        elif name == "join" and arguments:
            self.check_join(arguments[0], text)
        elif any(isinstance(value, int) and value > _MAX_WIDTH for value in arguments):
            raise TemplateLimitError(f"it asks for a width above {_MAX_WIDTH}")

    def check_replace(self, text: str, old: str, new: str) -> None:
        self.check_size(len(text) + text.count(old) * len(new))

    def check_join(self, items: Any, separator: str) -> None:
        if isinstance(items, (list, tuple)):
            self.check_size(sum(len(str(item)) + len(separator) for item in items))

    def _check_product(self, left: Any, right: Any) -> None:
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                self.check_size(len(value) * times)
        if isinstance(left, int) and isinstance(right, int):
            self._check_number(abs(left * right))

    def _check_number(self, number: float) -> None:
        if number >= _MAX_NUMBER:
            raise TemplateLimitError("it makes numbers that are too large")


def check_format(pattern: str) -> None:
    """Before a pattern is filled in: no widths that blow up the text."""
    if "*" in pattern or any(int(n) > _MAX_WIDTH for n in _NUMBERS.findall(pattern[:65_536])):
        raise TemplateLimitError(f"it formats with a width above {_MAX_WIDTH}")


_budget: ContextVar[RenderBudget] = ContextVar("render_budget")


def budget() -> RenderBudget:
    """The budget of the rendering that runs."""
    return _budget.get()


@contextmanager
def using(max_chars: int) -> Iterator[RenderBudget]:
    """A fresh budget for what runs inside."""
    fresh = RenderBudget(max_chars, monotonic() + MAX_SECONDS)
    token = _budget.set(fresh)
    try:
        yield fresh
    finally:
        _budget.reset(token)
