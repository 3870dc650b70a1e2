"""What models wrote, and what it means: scripted outputs for each format of tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.message_events import CallArguments, CallStart, Content, ToolEvent
from gateway.tools.incremental import ToolParser
from gateway.tools.registry import TOOL_FORMATS

TOOLS = ("get_weather", "add")


@dataclass(frozen=True)
class Read:
    """Events added up."""

    content: str
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each."""


@dataclass(frozen=True)
class Transcript:
    parser: str
    text: str
    read: Read


def parser_of(name: str) -> ToolParser:
    return TOOL_FORMATS[name].make_parser(TOOLS)


def read(parser: ToolParser, pieces: Iterable[str]) -> Read:
    events = [event for piece in pieces for event in parser.push(piece)]
    return add_up([*events, *parser.finish()])


def add_up(events: Iterable[ToolEvent]) -> Read:
    content, calls = "", list[list[str]]()
    for event in events:
        match event:
            case Content(text):
                content += text
            case CallStart(name):
                calls.append([name, ""])
            case CallArguments(text):
                calls[-1][1] += text
    return Read(content, tuple((name, arguments) for name, arguments in calls))


def _good(parser: str, text: str, *calls: tuple[str, str], content: str = "") -> Transcript:
    return Transcript(parser, text, Read(content, calls))


def _plain(parser: str, text: str) -> Transcript:
    return Transcript(parser, text, Read(text))


PARIS = ("get_weather", '{"city": "Paris"}')
SUM = ("add", '{"a": 1, "b": [2, {"c": "}]\\"\\u00e9"}]}')
_PARIS_JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
_SUM_JSON = '{"name": "add", "parameters": {"a": 1, "b": [2, {"c": "}]\\"\\u00e9"}]}}'

HERMES = [
    _good("hermes", f"<tool_call>\n{_PARIS_JSON}\n</tool_call>", PARIS),
    _good(
        "hermes",
        f"Let me look.\n\n<tool_call>{_PARIS_JSON}</tool_call>\n<tool_call>\n{_SUM_JSON}"
        "</tool_call>\nDone.\n",
        PARIS,
        SUM,
        content="Let me look.\nDone.\n",
    ),
    _good("hermes", f"<tool_call>{_PARIS_JSON}", PARIS),
    _good("hermes", f"<tool_call>{_PARIS_JSON}\n</tool_ca", PARIS),
    _good("hermes", f"<tool_call>{_PARIS_JSON[:-1]}</tool_call> ok", PARIS, content="ok"),
    _good(
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        PARIS,
    ),
    _good(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        PARIS,
    ),
    _good(
        "hermes",
        '<tool_call>{"id": [1.5e3, null, {"x": false}], "name": "add"}</tool_call>',
        ("add", "{}"),
    ),
    _good("hermes", '<tool_call>{"name": "add", "arguments": null}</tool_call>', ("add", "{}")),
    _good("hermes", '<tool_call>{"name": "other", "arguments": {}}', ("other", "{}")),
    # Cut off by max_tokens: the arguments that there are.
    _good("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1, "b', ("add", '{"a": 1, "b')),
    # Wrong within the arguments: the call stands as far as it went.
    _good(
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": oops}}</tool_call>',
        ("add", '{"a": '),
        content="oops}}</tool_call>",
    ),
    _plain("hermes", "1 < 2, a <tool, <tool_calls> <tool_call"),
    _plain("hermes", "<tool_call>\nnot JSON\n</tool_call>"),
    _plain("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    _plain("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    _plain("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    _plain("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    _plain("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
    _plain("hermes", '<tool_call>{"name": "add", "arguments": "x"}</tool_call>'),
    _plain("hermes", '<tool_call>{"name": "add", "arg'),
    _plain("hermes", "<tool_call>" + "[" * 100),
    _plain("hermes", "only text \n\n"),
]
MISTRAL = [
    _good("mistral", f"[TOOL_CALLS][{_PARIS_JSON}]", PARIS),
    _good("mistral", f"[TOOL_CALLS] [{_PARIS_JSON}, {_SUM_JSON}]", PARIS, SUM),
    _good("mistral", f"Ok. [TOOL_CALLS]get_weather{PARIS[1]}", PARIS, content="Ok."),
    _good(
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{PARIS[1]}[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{SUM[1]}",
        PARIS,
        SUM,
    ),
    _good("mistral", f"[TOOL_CALLS]{_PARIS_JSON}", PARIS),
    _good("mistral", '[TOOL_CALLS]add{"a": 1', ("add", '{"a": 1')),
    _plain("mistral", "[TOOL_CALLS]"),
    _plain("mistral", "[TOOL_CALLS]get_weather"),
    _plain("mistral", "[TOOL_CALLS]get weather{}"),
    _plain("mistral", "[TOOL_CALLS][1, 2]"),
    _plain("mistral", "[TOOL_CALLS]?{}"),
    _plain("mistral", "[TOOL_CALLS]" + "x" * 300 + "{}"),
    _plain("mistral", "[TOOL a] [1, 2]"),
    _plain("mistral", "[TOOL_CALLS]add[CALL_ID]" + "a" * 65 + "[ARGS]{}"),
]
LLAMA = [
    _good("llama3_json", _PARIS_JSON, PARIS),
    _good("llama3_json", f"\n{_PARIS_JSON}; {_SUM_JSON}", PARIS, SUM),
    _good("llama3_json", f"<|python_tag|>{_SUM_JSON}", SUM),
    _good("llama3_json", f"I call: <|python_tag|>{_SUM_JSON}", SUM, content="I call:"),
    _good("llama4_json", '{"type": "function", "name": "add", "parameters": {}}', ("add", "{}")),
    _plain("llama3_json", '{"name": "Bob", "parameters": {}}'),
    _plain("llama3_json", '{"answer": 42}'),
    _plain("llama3_json", f"Text, then {_PARIS_JSON}"),
    _plain("llama3_json", "<|python_tag|>print(1)"),
    _plain("llama3_json", "<|python"),
]
JSON = [
    _good("json", _PARIS_JSON, PARIS),
    _good("json", f"[{_PARIS_JSON}, {_SUM_JSON}]", PARIS, SUM),
    _good("json", f"{_PARIS_JSON}\n{_SUM_JSON}", PARIS, SUM),
    _good("json", f"```json\n[{_PARIS_JSON}]\n```\nDone", PARIS, content="Done"),
    _good("json", f" ```\n{_PARIS_JSON}\n``", PARIS),
    _plain("json", "```python\nprint(1)\n```"),
    _plain("json", "[1, 2]"),
    _plain("json", '[{"name": "Bob"}]'),
    _plain("json", "``"),
    _plain("json", f"See: {_PARIS_JSON}"),
]
PYTHONIC = [
    _good("pythonic", '[get_weather(city="Paris")]', PARIS),
    _good("pythonic", "[get_weather(city='Paris'), add()]", PARIS, ("add", "{}")),
    _good("llama4_pythonic", "<|python_start|>[get_weather(city='Paris')]<|python_end|>", PARIS),
    _good("llama4_pythonic", "<|python_start|>[get_weather(city='Paris')]<|python_e", PARIS),
    _good(
        "pythonic",
        """[add(a=-1.5e3, b=[True, None, (0x10,)], c={"k": 'it\\'s )'}, d='''say "hi"''',)]""",
        (
            "add",
            '{"a": -1500.0, "b": [true, null, [16]], "c": {"k": "it\'s )"}, "d": "say \\"hi\\""}',
        ),
    ),
    _good(
        "pythonic",
        "[add(a='x' \"y\", b='\\x41\\u00e9\\n\\q')]",
        ("add", '{"a": "xy", "b": "Aé\\n\\\\q"}'),
    ),
    _good("pythonic", "[add(a=1)] Done", ("add", '{"a": 1}'), content="Done"),
    _plain("pythonic", "[Note] see [add(a=1)]"),
    _plain("pythonic", "[other(a=1)]"),
    _plain("pythonic", "[add(a=b)]"),
    _plain("pythonic", "[add(1)]"),
    _plain("pythonic", "[add(a=1, a=2)]"),
    _plain("pythonic", "[add(a=1"),
    _plain("pythonic", "[add(a='x"),
    _plain("pythonic", "[add(a='\\ud800')]"),
    _plain("pythonic", "[add(a=" + "[" * 100 + "]" * 100 + ")]"),
    _plain("pythonic", "[add(a=1e999)]"),
    _plain("pythonic", "[add(a=007)]"),
    _plain("pythonic", "[add(a=__import__('os'))]"),
    _plain("pythonic", "[]"),
]
TRANSCRIPTS = [*HERMES, *MISTRAL, *LLAMA, *JSON, *PYTHONIC]
