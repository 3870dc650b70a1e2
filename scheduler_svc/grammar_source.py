"""From what a client wrote to a grammar in llguidance's Lark dialect; pure text work.

Every form becomes Lark text, so that one option can be put behind it: masks allow every way to cut
the text into tokens, not the one that a greedy tokenizer would take. It also refuses what the
library would work on without an end (see `_check_lark`), and knows nothing of tokens.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from llguidance import LLMatcher

from pagewire.kit.json_depth import MAX_JSON_DEPTH, is_too_deep
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import GRAMMAR_TOO_COMPLEX, INVALID_GRAMMAR, GrammarError
from scheduler_svc.structural_formats import StructuralTagError
from scheduler_svc.structural_tags import structural_tag_grammars

MAX_REGEX_BYTES = 32_768
"""Every step walks what is left of an expression, so a long one would slow each of its steps."""
MAX_DEFINITIONS = 2000
"""Rules and terminals of a Lark grammar; compiling takes the square of a chain's length."""
MAX_TERMS = 5000
"""Names, strings and expressions of a Lark grammar; a long sequence takes their square."""
MAX_PATTERNS = 32
"""`patternProperties` of one object: each is compared with each other."""
MAX_MEMBERS = 1000
"""Members of one object of a schema: compiling takes the square of the properties."""

# One way to write each value: whitespace that may repeat lets a small model write nothing else,
# and with these separators (those of most JSON that models have read) keys can be drafted whole.
_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
}
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
# Strings, expressions and comments of a Lark grammar. An end of the text closes them and nothing is
# tried twice, so that the time is linear in any text.
_QUOTED = re.compile(
    r"""
    "(?:\\.?|[^"\\])*+(?:"|\Z)
    | /(?!/)(?:\\.?|[^/\\])*+(?:/|\Z)
    | (?://|\#)[^\n]*+
    """,
    re.DOTALL | re.VERBOSE,
)
_NAME = re.compile(r"\w+")
_FORM = "form"
_REASONING = "reasoning"
_LIMIT = re.compile(r"\b(limits?|fuel|too (many|big|complex|large|deeply)|max is)\b")
# What a message quotes is the client's own.
_QUOTES = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`|(?<=: )\w+$|#/\S+")
_INTERNALS = re.compile(r"\(And |\(SearchRegex|\bSome\(|failed to parse \"%json\"")
_MAX_MESSAGE_CHARS = 300
_MINIMUM = re.compile(r'"min(?:Length|Items|Properties)"\s*:\s*(\d+)')
MAX_FORCED_FORM_BYTES = 16_384
"""Upper bound of the text that a form may force to have it drafted."""


def grammar_source(outputs: StructuredOutputs) -> str:
    """Return the grammar to compile.

    Raises:
        GrammarError: It is wrong in a way that is seen without compiling.
    """
    parts: dict[str, str] = {}
    if outputs.choice:
        lark = f"start: CHOICE\nCHOICE: {' | '.join(map(json.dumps, outputs.choice))}"
    elif outputs.regex is not None:
        lark = _regex(outputs.regex)
    elif outputs.grammar is not None:
        _check_lark(outputs.grammar)
        lark = outputs.grammar
    elif outputs.structural_tag is not None:
        lark, parts = _structural_tag(outputs.structural_tag)
    else:
        lark = _schema(_parse_json(outputs.json_schema or '{"type": "object"}', "json_schema"))
    grammars = [{"lark_grammar": lark + _NO_FORCING}]
    if outputs.reasoning_end:
        reasoning = _reasoning(outputs.reasoning_start, outputs.reasoning_end)
        grammars = [{"lark_grammar": reasoning + _NO_FORCING}, {"name": _FORM, **grammars[0]}]
    grammars += [{"name": name, "lark_grammar": part + _NO_FORCING} for name, part in parts.items()]
    # Built here: the library takes a text that looks like JSON for its own container format.
    return json.dumps({"grammars": grammars})


def _reasoning(start: str, end: str) -> str:
    """Anything up to the closing tag, then the form; some line breaks may stand between."""
    reasoning = f"(OPEN {_REASONING})?" if start else _REASONING
    opening = f"OPEN: /\\s{{0,8}}/ {json.dumps(start)}\n" if start else ""
    return (
        f"start: {reasoning} BREAKS @{_FORM}\n{opening}BREAKS: /\\n{{0,2}}/\n"
        f"{_REASONING}[stop={json.dumps(end)}]: /(.|\\n)*/"
    )


def forces_little(outputs: StructuredOutputs) -> bool:
    """Whether the text that the form forces anywhere is surely short.

    Text that must follow is found in one go, on the event loop, however long it is, and a long one
    uses up limits that all requests of the form share. Repetition and references make a small form
    force much: of n references, 3^(n / 3) copies at most.
    """
    if outputs.grammar is not None or outputs.structural_tag is not None:
        return False
    if outputs.regex is not None:
        return "{" not in outputs.regex
    text = outputs.json_schema or ""
    if len(text) > MAX_FORCED_FORM_BYTES or "pattern" in text:
        return False
    num_copies = 3 ** (text.count("$ref") / 3)
    for least in _MINIMUM.findall(text):
        num_copies *= int(least[:6]) + 1
    return outputs.num_bytes * num_copies <= MAX_FORCED_FORM_BYTES


def describe(outputs: StructuredOutputs, error: str) -> GrammarError:
    """Return the library's message on a form as an error for the client."""
    lines = [line.removesuffix("<non-verbose/>").strip() for line in error.splitlines()]
    # Of an expression's error, the first lines show where it is and one says what it is.
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    text = (named or [lines[0] if lines else ""])[0]
    if outputs.grammar is None:
        # Positions are those of the text that was made here, which the client never saw.
        text = re.sub(r"^(at )?\d+\(\d+\): ", "", text)
        text = re.sub(
            r'^(failed to compile JSON schema: |invalid regex ".*" \(in regex\): )', "", text
        )
    if _LIMIT.search(_QUOTES.sub("", text)):
        return _too_complex(_kind(outputs))
    if text.startswith("NoExtension"):
        text = "no output can have this form"
    if text.startswith("Resource '"):
        text = "references to other documents are not fetched; put the schemas under $defs"
    if _INTERNALS.search(text):
        text = ""
    text = re.split(r"\. Enable |; following special tokens", text)[0]
    return GrammarError(INVALID_GRAMMAR, f"{_kind(outputs)}: {_cut(text) or 'it is not valid'}")


def _kind(outputs: StructuredOutputs) -> str:
    """The client's field that holds the form."""
    given = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")
    return next(name for name in given if getattr(outputs, name))


def _regex(regex: str, kind: str = "regex") -> str:
    if len(regex.encode()) > MAX_REGEX_BYTES:
        raise _too_complex(kind, f"at most {MAX_REGEX_BYTES} bytes are taken")
    # Whatever an expression needs to stand between slashes is the library's to know.
    container = json.loads(LLMatcher.grammar_from_regex(regex))
    return str(container["grammars"][0]["lark_grammar"])


def _structural_tag(text: str) -> tuple[str, dict[str, str]]:
    """The grammar, and those of the schemas within it by name."""
    value = _parse_json(text, "structural_tag")
    try:
        return structural_tag_grammars(
            value,
            lambda schema: _schema(schema, "structural_tag"),
            lambda pattern: _regex(pattern, "structural_tag").removeprefix("start: "),
        )
    except StructuralTagError as error:
        raise GrammarError(INVALID_GRAMMAR, f"structural_tag: {error}") from None


def _schema(schema: Any, kind: str = "json_schema") -> str:
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError(INVALID_GRAMMAR, f"{kind}: must be a JSON object")
    _check_members(schema)
    return f"start: %json {json.dumps({**schema, 'x-guidance': _JSON_OPTIONS})}"


def _parse_json(text: str, kind: str) -> Any:
    # Parsed and written again: what is not JSON must not become part of the text around it.
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise GrammarError(INVALID_GRAMMAR, f"{kind}: is not valid JSON") from None
    if is_too_deep(text, value):
        raise _too_complex(kind, f"at most {MAX_JSON_DEPTH} levels are taken")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _check_members(schema: Any) -> None:
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if len(value) > MAX_MEMBERS:
                detail = f"an object may have {MAX_MEMBERS} members at most"
                raise _too_complex("json_schema", detail)
            patterns = value.get("patternProperties")
            if isinstance(patterns, dict) and len(patterns) > MAX_PATTERNS:
                detail = f"patternProperties may have {MAX_PATTERNS} members at most"
                raise _too_complex("json_schema", detail)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _check_lark(text: str) -> None:
    """Refuse what no limit of the library bounds.

    An intersection or complement of expressions is searched for a match when it is compiled, over
    more states than there is time for; nothing can stop the thread that does it.
    """
    bare = _QUOTED.sub(" ", text)
    if "&" in bare or "~" in bare:
        raise GrammarError(
            INVALID_GRAMMAR, "grammar: the operators & and ~ are not supported; write it without"
        )
    if nested := re.search(r"%(json|regex)\b", bare):
        # What bounds a form of its own does not see the one within.
        raise GrammarError(
            INVALID_GRAMMAR,
            f"grammar: {nested[0]} is not supported; give it as a form of its own, or write it out",
        )
    if bare.count(":") > MAX_DEFINITIONS:
        raise _too_complex("grammar", f"at most {MAX_DEFINITIONS} definitions are taken")
    if len(_QUOTED.findall(text)) + len(_NAME.findall(bare)) > MAX_TERMS:
        raise _too_complex("grammar", f"at most {MAX_TERMS} names, strings and expressions")


def _too_complex(kind: str, detail: str = "make it smaller") -> GrammarError:
    return GrammarError(GRAMMAR_TOO_COMPLEX, f"{kind}: it is too complex; {detail}")


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[: _MAX_MESSAGE_CHARS - 1] + "…"
