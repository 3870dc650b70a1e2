"""Formats of a structural tag, a tree of parts of an output, to a grammar in Lark.

Parts are free text, fixed text, expressions and JSON of a schema; tags, sequences and choices hold
others. Pure text work; it knows no tokens and not how schemas become grammars.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_FORMATS = 1024
"""Of one tree; a tag and what it holds are two."""
MAX_TAGS = 256
MAX_TRIGGERS = 16
MAX_TEXT_CHARS = 1024

_FREE = "/(.|\\n)*/"

End = str | None
"""The text that stands behind a part, and that ends it; "": the output's end; None: neither."""


class StructuralTagError(ValueError):
    """What is wrong, in a sentence for the client."""


@dataclass(slots=True)
class FormatWriter:
    """Writes one grammar; made for each."""

    schema_grammar: Callable[[Any], str]
    """From a JSON schema to its grammar."""
    regex_term: Callable[[str], str]
    """From an expression to a term of a grammar."""
    grammars: dict[str, str] = field(default_factory=dict)
    """Those that the grammar refers to, by name."""
    _lines: list[str] = field(default_factory=list)
    _num_formats: int = 0

    def write(self, value: Any, path: str) -> str:
        """Return the grammar of outputs that have this format.

        Raises:
            StructuralTagError: It is none, or too large; names the part by its path.
        """
        start = self._body(value, path, "")
        return "\n".join([f"start: {start}", *self._lines])

    def _body(self, value: Any, path: str, end: End) -> str:
        """Return the term of a format and of the text behind it."""
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS:
            raise StructuralTagError(f"{path}: there are more than {MAX_FORMATS} formats")
        kind = value.get("type") if isinstance(value, dict) else None
        writers = {
            "const_string": self._const,
            "json_schema": self._schema,
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._separated_tags,
        }
        if not isinstance(kind, str) or kind not in writers:
            raise StructuralTagError(f"{path}.type: must be one of {', '.join(writers)}")
        return writers[kind](value, path, end)

    def _const(self, value: dict[str, Any], path: str, end: End) -> str:
        return _joined(_quoted(_text(value, "value", path)), _quoted(end))

    def _schema(self, value: dict[str, Any], path: str, end: End) -> str:
        if not isinstance(value.get("json_schema"), dict | bool):
            raise StructuralTagError(f"{path}.json_schema: must be a JSON schema")
        name = f"schema_{len(self.grammars)}"
        self.grammars[name] = self.schema_grammar(value["json_schema"])
        return _joined(f"@{name}", _quoted(end))

    def _regex(self, value: dict[str, Any], path: str, end: End) -> str:
        # One terminal with its end: the longest match of the expression alone could swallow it.
        term = self.regex_term(_text(value, "pattern", path))
        return self._line("REGEX", _joined(f"({term})", _quoted(end)))

    def _any_text(self, value: dict[str, Any], path: str, end: End) -> str:
        if value.get("excludes") or value.get("excluded_str"):
            raise StructuralTagError(f"{path}: any_text excludes nothing but its end here")
        return self._free(path, end)

    def _sequence(self, value: dict[str, Any], path: str, end: End) -> str:
        elements = _list(value, "elements", path)
        last = len(elements) - 1
        return _joined(
            *(
                self._body(each, f"{path}.elements[{i}]", end if i == last else None)
                for i, each in enumerate(elements)
            )
        )

    def _or(self, value: dict[str, Any], path: str, end: End) -> str:
        return _choice(
            self._body(each, f"{path}.elements[{i}]", end)
            for i, each in enumerate(_list(value, "elements", path))
        )

    def _tag(self, value: dict[str, Any], path: str, end: End) -> str:
        begin, rest = self._tag_parts(value, path, end)
        return _joined(_quoted(begin), rest)

    def _triggered_tags(self, value: dict[str, Any], path: str, end: End) -> str:
        triggers = _list(value, "triggers", path, MAX_TRIGGERS)
        if not all(isinstance(each, str) and 0 < len(each) <= MAX_TEXT_CHARS for each in triggers):
            raise StructuralTagError(
                f"{path}.triggers: a trigger has 1 to {MAX_TEXT_CHARS} characters"
            )
        tags = self._tags(value, path)
        parts: dict[str, list[str]] = {}
        for place, (begin, rest) in enumerate(tags):
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if trigger is None:
                raise StructuralTagError(f"{path}.tags[{place}].begin begins with no trigger")
            behind = _joined(_quoted(begin[len(trigger) :]), rest)
            parts.setdefault(trigger, []).append(behind)
        triggered = _choice(
            f"{self._text_up_to(trigger)} {_choice(behind)}" for trigger, behind in parts.items()
        )
        first = _choice(_joined(_quoted(begin), rest) for begin, rest in tags)
        if not _flag(value, "stop_after_first", path):
            rest = f"({triggered})* {self._free(path, end)}"
            return _joined(first, rest) if _flag(value, "at_least_one", path) else rest
        if _flag(value, "at_least_one", path):
            return _joined(first, _quoted(end))
        return f"({_joined(triggered, _quoted(end))} | {self._free(path, end)})"

    def _separated_tags(self, value: dict[str, Any], path: str, end: End) -> str:
        separator = value.get("separator", "")
        if not isinstance(separator, str) or len(separator) > MAX_TEXT_CHARS:
            raise _not_text(f"{path}.separator")
        tags = _choice(_joined(_quoted(begin), rest) for begin, rest in self._tags(value, path))
        once = _flag(value, "stop_after_first", path)
        tag = tags if once else self._line("tag", tags)
        many = tag if once else f"{tag} ({_joined(_quoted(separator), tag)})*"
        some = many if _flag(value, "at_least_one", path) else f"({many})?"
        return _joined(some, _quoted(end))

    def _tags(self, value: dict[str, Any], path: str) -> list[tuple[str, str]]:
        tags = []
        for place, tag in enumerate(_list(value, "tags", path)):
            here = f"{path}.tags[{place}]"
            if not isinstance(tag, dict):
                raise StructuralTagError(f"{here}: must be an object with begin, content and end")
            begin, rest = self._tag_parts(tag, here, None)
            # Both a first tag and a later one may refer to it.
            tags.append((begin, self._line("structure", rest)))
        return tags

    def _tag_parts(self, tag: dict[str, Any], path: str, end: End) -> tuple[str, str]:
        """Return how a tag begins, and the term of the rest and of the text behind it."""
        begin = _text(tag, "begin", path, least=0)
        own_end = _text(tag, "end", path, least=0)
        if not own_end:
            return begin, self._body(tag.get("content"), f"{path}.content", end)
        rest = self._body(tag.get("content"), f"{path}.content", own_end)
        return begin, _joined(rest, _quoted(end))

    def _free(self, path: str, end: End) -> str:
        """Return the term of any text and of the one behind it."""
        if end is None:
            raise StructuralTagError(
                f"{path}: free text must be the last part of the output, or of a tag with an end"
            )
        return self._text_up_to(end) if end else self._line("FREE", _FREE)

    def _text_up_to(self, end: str) -> str:
        return self._line("text", _FREE, f"[stop={json.dumps(end)}]")

    def _line(self, kind: str, term: str, options: str = "") -> str:
        """Write a definition; return its name."""
        name = f"{kind}_{len(self._lines)}"
        self._lines.append(f"{name}{options}: {term}")
        return name


def _text(value: dict[str, Any], name: str, path: str, least: int = 1) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not least <= len(text) <= MAX_TEXT_CHARS:
        raise _not_text(f"{path}.{name}", least)
    return text


def _not_text(path: str, least: int = 0) -> StructuralTagError:
    return StructuralTagError(f"{path}: must be a text of {least} to {MAX_TEXT_CHARS} characters")


def _list(value: dict[str, Any], name: str, path: str, most: int = MAX_TAGS) -> list[Any]:
    values = value.get(name)
    if not isinstance(values, list) or not 0 < len(values) <= most:
        raise StructuralTagError(f"{path}.{name}: needs 1 to {most} of them")
    return values


def _flag(value: dict[str, Any], name: str, path: str) -> bool:
    flag = value.get(name, False)
    if not isinstance(flag, bool):
        raise StructuralTagError(f"{path}.{name}: must be true or false")
    return flag


def _quoted(text: End) -> str:
    """As a string of the grammar; none where there is no text."""
    return json.dumps(text) if text else ""


def _joined(*terms: str) -> str:
    return " ".join(term for term in terms if term)


def _choice(terms: Any) -> str:
    return f"({' | '.join(terms)})"
