"""What llguidance makes of every form: which tokens may be drawn, and when an output is whole."""

from __future__ import annotations

import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import GRAMMAR_TOO_COMPLEX, INVALID_GRAMMAR, Grammar, GrammarError
from scheduler_svc.grammar_backend import (
    MAX_CACHED_FORM_BYTES,
    MAX_WALKED_TOKENS,
    GrammarBackend,
)
from scheduler_svc.grammar_source import MAX_FORCED_FORM_BYTES
from tests.json_schemas import make_cases
from tests.scheduler_svc.vocabularies import (
    BOS,
    EOS,
    FORMS,
    IM_END,
    ROW_SIZE,
    TOKENS,
    VOCAB_SIZE,
    accept_text,
    allowed,
    make_backend,
    rows,
    text_of,
)

MAX_WALK = 3000
# Each rule says the next one ten times.
LAUGHS = "start: a\n" + "\n".join(
    f"{rule}: {' '.join([following] * 10)}"
    for rule, following in zip("abcde", "bcdef", strict=True)
)
LAUGHS += '\nf: "ha"\n'
EVERYTHING = set(range(ROW_SIZE * 8))


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return make_backend()


def token(text: str) -> int:
    return TOKENS.index(text.encode())


def walk(grammar: Grammar, seed: int) -> list[int] | None:
    """Draw at random from the masks until the output ends; None if it does not soon enough.

    An end is drawn whenever it may be, and long runs are closed soon: quotes and brackets go
    before other tokens.
    """
    draw = random.Random(seed)
    closing = [token(each) for each in ('"', "}", "]", '"}', "}}", "]]")]
    token_ids: list[int] = []
    while not grammar.is_complete:
        if len(token_ids) == MAX_WALK:
            return None
        ids = allowed(grammar)
        assert ids and max(ids) < VOCAB_SIZE
        ends = sorted(ids & {EOS, IM_END})
        closers = sorted(ids.intersection(closing))
        if ends and draw.random() < 0.5:
            chosen = draw.choice(ends)
        elif closers and draw.random() < 0.4:
            chosen = draw.choice(closers)
        else:
            chosen = draw.choice(sorted(ids))
        token_ids.append(chosen)
        assert grammar.accept(chosen), chosen
    return token_ids


def is_of_form(name: str, text: bytes) -> bool:
    form = FORMS[name]
    if name == "choice":
        return text.decode() in form.choice
    if form.regex is not None:
        return re.fullmatch(form.regex, text.decode()) is not None
    if name == "grammar":
        bare = text.decode().translate({ord("["): None, ord("]"): None})
        return all(re.fullmatch("[a-c]{1,3}", item) for item in bare.split(", "))
    value = json.loads(text)
    if name == "json_schema":
        jsonschema.validate(value, json.loads(form.json_schema or ""))
    return isinstance(value, dict)


@pytest.mark.parametrize("name", FORMS)
def test_whatever_is_drawn_from_the_masks_has_the_form(backend: GrammarBackend, name: str) -> None:
    num_ended = 0
    for seed in range(50):
        token_ids = walk(backend.compile(FORMS[name]), seed)
        if token_ids is not None:
            num_ended += 1
            assert is_of_form(name, text_of(token_ids)), text_of(token_ids)
    assert num_ended >= 45


def test_outputs_of_schemas_as_applications_write_them_are_valid(backend: GrammarBackend) -> None:
    num_ended = 0
    for index, case in enumerate(make_cases(40, seed=7)):
        form = StructuredOutputs(json_schema=json.dumps(case.schema))
        token_ids = walk(backend.compile(form), index)
        if token_ids is not None:
            num_ended += 1
            jsonschema.validate(json.loads(text_of(token_ids)), case.schema)
    assert num_ended >= 30


@pytest.mark.parametrize("name", FORMS)
def test_asking_changes_nothing_and_tells_the_truth(backend: GrammarBackend, name: str) -> None:
    """Masks after drafts are those that come when the drafts are accepted one by one."""
    for seed in range(8):
        whole = walk(backend.compile(FORMS[name]), seed) or []
        start = len(whole) // 3
        asked, told = backend.compile(FORMS[name]), backend.compile(FORMS[name])
        for token_id in whole[:start]:
            assert asked.accept(token_id) and told.accept(token_id)
        drafts = whole[start : start + 6]
        assert asked.valid_prefix(drafts) == len(drafts)
        after = rows(asked.masks(drafts))
        assert len(after) == 1 + len(drafts)
        assert rows(asked.masks(())) == after[:1]
        for row, draft in zip(after, drafts, strict=False):
            assert not told.is_complete
            assert row == allowed(told) and draft in row
            assert told.accept(draft)
        assert after[-1] == (EVERYTHING if told.is_complete else allowed(told))


def test_rows_behind_a_draft_that_is_not_allowed_are_all_ones(backend: GrammarBackend) -> None:
    grammar = backend.compile(StructuredOutputs(regex="hello|hex"))
    first, second, *others = rows(grammar.masks([token("he"), token("a"), token("b")]))
    assert first == {token("h"), token("he"), 270, token("hello")} == allowed(grammar)
    assert second == {token("l"), token("llo"), token("x")}
    assert others == [EVERYTHING, EVERYTHING]
    assert grammar.valid_prefix([token("he"), token("a"), token("b")]) == 1
    assert grammar.valid_prefix([VOCAB_SIZE + 5]) == 0
    assert grammar.accept(token("hello")) and grammar.is_complete


def test_an_end_is_allowed_exactly_where_the_output_may_be_whole(backend: GrammarBackend) -> None:
    grammar = backend.compile(StructuredOutputs(regex="ab*"))
    assert allowed(grammar) == {token("a"), token("ab")}
    assert grammar.accept(token("a"))
    assert allowed(grammar) == {token("b"), EOS, IM_END}
    assert not grammar.is_complete
    assert grammar.valid_prefix([token("b"), IM_END, token("b")]) == 2
    behind = rows(grammar.masks([token("b"), EOS, token("b")]))
    assert behind[1] == {token("b"), EOS, IM_END}
    assert behind[2:] == [EVERYTHING, EVERYTHING]
    assert grammar.accept(EOS) and grammar.is_complete
    assert grammar.valid_prefix([token("b")]) == 0
    assert rows(grammar.masks([1])) == [EVERYTHING, EVERYTHING]
    assert not grammar.accept(EOS)


def test_an_end_before_the_output_is_whole_is_refused(backend: GrammarBackend) -> None:
    grammar = backend.compile(StructuredOutputs(regex="ab"))
    assert grammar.valid_prefix([EOS]) == 0
    assert not grammar.accept(EOS)


def test_where_nothing_can_follow_the_output_is_complete_without_an_end(
    backend: GrammarBackend,
) -> None:
    grammar = backend.compile(StructuredOutputs(choice=("ab", "abc")))
    assert accept_text(grammar, "ab") and not grammar.is_complete
    assert accept_text(grammar, "c") and grammar.is_complete
    assert allowed(grammar) == {EOS, IM_END}
    assert grammar.valid_prefix([EOS, EOS]) == 1
    assert grammar.accept(EOS)


def test_special_tokens_are_no_text(backend: GrammarBackend) -> None:
    grammar = backend.compile(StructuredOutputs(choice=("<s>", "</s>", "<|im_end|>")))
    assert allowed(grammar) == {token("<")}
    assert not grammar.accept(BOS)


def test_text_that_must_follow_is_drafted_and_allowed(backend: GrammarBackend) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    grammar = backend.compile(StructuredOutputs(json_schema=json.dumps(schema)))
    drafts = grammar.forced_tokens(10)
    assert drafts == [token('{"'), token("name"), token('": "')]
    assert grammar.forced_tokens(2) == drafts[:2]
    assert grammar.valid_prefix(drafts) == 3
    for draft in drafts:
        assert draft in allowed(grammar) and grammar.accept(draft)
    assert grammar.forced_tokens(10) == []
    assert accept_text(grammar, 'x"')
    assert grammar.forced_tokens(10) == [token("}")]
    assert accept_text(grammar, "}") and grammar.forced_tokens(10) == []


def test_the_model_may_cut_forced_text_as_it_likes(backend: GrammarBackend) -> None:
    """The masks hold every token that begins the text, not the one that a draft would have."""
    grammar = backend.compile(StructuredOutputs(choice=("hello",)))
    assert allowed(grammar) == {token("h"), token("he"), 270, token("hello")}


def test_a_long_form_is_followed_and_nothing_is_drafted_for_it(backend: GrammarBackend) -> None:
    text = "ab" * (MAX_FORCED_FORM_BYTES // 2 + 1)
    grammar = backend.compile(StructuredOutputs(choice=(text,)))
    assert grammar.forced_tokens(4) == []
    assert accept_text(grammar, text) and grammar.is_complete


@pytest.mark.parametrize(
    "form",
    [
        StructuredOutputs(regex="a{30000}"),
        StructuredOutputs(json_schema='{"type": "string", "minLength": 1000, "pattern": "^a*$"}'),
        StructuredOutputs(json_schema='{"type": "array", "minItems": 9000, "items": {"const": 1}}'),
        StructuredOutputs(grammar=LAUGHS),
    ],
    ids=["regex", "pattern", "items", "lark"],
)
def test_drafts_cost_no_request_a_limit(backend: GrammarBackend, form: StructuredOutputs) -> None:
    grammar = backend.compile(form)
    for _ in range(40):
        grammar.forced_tokens(16)
        token_id = min(allowed(grammar))
        grammar.valid_prefix([token_id] * 8)
        grammar.masks([token_id] * 8)
        assert grammar.accept(token_id)


def test_a_grammar_of_endless_readings_meets_its_limit_soon(backend: GrammarBackend) -> None:
    grammar = backend.compile(StructuredOutputs(grammar='start: s\ns: s s | "a"'))
    long_token = max(allowed(grammar), key=lambda token_id: len(TOKENS[token_id]))
    num_bytes = 0
    with pytest.raises(GrammarError) as caught:
        while num_bytes < 10_000:
            taken = grammar.accept(long_token)
            num_bytes += len(TOKENS[long_token])
            grammar.masks(())
            assert taken
    assert caught.value.reason == GRAMMAR_TOO_COMPLEX
    assert num_bytes <= 200


def test_too_many_cases_at_once_are_called_too_complex(backend: GrammarBackend) -> None:
    groups = [[f"g{group}_{n}" for n in range(3)] for group in range(5)]
    cases = [
        {"anyOf": [{"properties": {name: {"type": "null"}}, "required": [name]} for name in group]}
        for group in groups
    ]
    with pytest.raises(GrammarError) as caught:
        backend.compile(StructuredOutputs(json_schema=json.dumps({"allOf": cases})))
    assert caught.value.reason == GRAMMAR_TOO_COMPLEX


def test_a_form_that_met_a_limit_is_compiled_anew(backend: GrammarBackend) -> None:
    form = StructuredOutputs(grammar='start: s\ns: s s | "a"')
    for _ in range(2):
        grammar = backend.compile(form)
        with pytest.raises(GrammarError):
            for _ in range(1000):
                grammar.accept(token("a"))
                grammar.masks(())


def test_a_request_that_meets_a_limit_leaves_others_of_its_form_alone(
    backend: GrammarBackend,
) -> None:
    form = StructuredOutputs(regex="(.*a.{200}){3}")
    victim, greedy = backend.compile(form), backend.compile(form)
    for _ in range(20):
        victim.masks(())
        assert victim.accept(token("b"))
    victim.masks(())
    draw = random.Random(3)
    with pytest.raises(GrammarError) as caught:
        for _ in range(5000):
            greedy.masks(())
            assert greedy.accept(token(draw.choice("ab")))
    assert caught.value.reason == GRAMMAR_TOO_COMPLEX
    for _ in range(50):
        assert victim.accept(token("b"))
        assert token("b") in allowed(victim)
    assert token("b") in allowed(backend.compile(form))


def test_a_form_that_was_walked_much_is_compiled_anew(backend: GrammarBackend) -> None:
    form = StructuredOutputs(regex="[ab]*")
    first = backend.compile(form)
    for _ in range(MAX_WALKED_TOKENS + 1):
        first.accept(token("a"))
    second = backend.compile(form)
    assert second._compiled is not first._compiled  # type: ignore[attr-defined]
    assert backend.compile(form)._compiled is second._compiled  # type: ignore[attr-defined]


def test_compiled_forms_are_bounded_by_size() -> None:
    backend = make_backend(cache_size=1000)
    text = "x" * (MAX_CACHED_FORM_BYTES // 4)
    compiled = [
        backend.compile(StructuredOutputs(choice=(f"{number}{text}",))) for number in range(5)
    ]
    assert len(compiled) == 5
    assert backend.num_cached_forms < 5


def test_many_choices_are_told_apart(backend: GrammarBackend) -> None:
    choices = tuple(f"{number:05d}" for number in range(10_000))
    grammar = backend.compile(StructuredOutputs(choice=choices))
    assert accept_text(grammar, "0999")
    assert allowed(grammar) == {token(str(digit)) for digit in range(10)}


def test_whitespace_of_json_is_fixed(backend: GrammarBackend) -> None:
    form = StructuredOutputs(json_object=True)
    assert accept_text(backend.compile(form), '{"a": [1, 2], "b": {}}')
    for text in ('{ "a"', '{"a":1', '{"a": 1,"b"', '{"a": 1 ', " {", '{"a":  1', "{\n"):
        assert not accept_text(backend.compile(form), text), text


def test_a_schema_cannot_change_how_it_is_read(backend: GrammarBackend) -> None:
    options = {"whitespace_flexible": True, "lenient": True}
    form = StructuredOutputs(json_schema=json.dumps({"type": "object", "x-guidance": options}))
    assert not accept_text(backend.compile(form), "{ ")
    with pytest.raises(GrammarError, match="uniqueItems"):
        backend.compile(
            StructuredOutputs(
                json_schema=json.dumps({"uniqueItems": True, "x-guidance": {"lenient": True}})
            )
        )


def test_the_same_form_is_compiled_once_and_its_grammars_are_apart() -> None:
    backend = make_backend(cache_size=1)
    form, other = StructuredOutputs(regex="ab"), StructuredOutputs(regex="cd")
    first, second = backend.compile(form), backend.compile(form)
    assert first.accept(token("a"))
    assert allowed(first) == {token("b")} != allowed(second)
    assert allowed(backend.compile(form)) == allowed(second)
    assert allowed(backend.compile(other)) == {token("c")}  # pushes the first one out
    assert allowed(backend.compile(form)) == allowed(second)


def test_a_backend_serves_many_threads(backend: GrammarBackend) -> None:
    start = threading.Barrier(4)

    def run(seed: int) -> bool:
        start.wait(20)
        names = list(FORMS) * 2
        random.Random(seed).shuffle(names)
        for name in names:
            token_ids = walk(backend.compile(FORMS[name]), seed)
            if token_ids is not None and not is_of_form(name, text_of(token_ids)):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))


def schema(**keywords: object) -> StructuredOutputs:
    return StructuredOutputs(json_schema=json.dumps(keywords))


def lark(text: str) -> StructuredOutputs:
    return StructuredOutputs(grammar=text)


WRONG: list[tuple[StructuredOutputs, str]] = [
    (StructuredOutputs(regex="a("), "regex: unclosed group"),
    (StructuredOutputs(regex="[a"), "regex: unclosed character class"),
    (StructuredOutputs(regex="(?=a)b"), "regex: look-around"),
    (StructuredOutputs(regex=r"\b"), "regex: lookarounds"),
    (StructuredOutputs(regex=r"(a)\1"), "regex: backreferences"),
    (StructuredOutputs(regex="a{2,1}"), "regex: invalid repetition"),
    (StructuredOutputs(regex=r"\p{Foo}"), "regex: Unicode property"),
    (StructuredOutputs(json_schema="{"), "json_schema: is not valid JSON"),
    (StructuredOutputs(json_schema='{"const": NaN}'), "json_schema: is not valid JSON"),
    (StructuredOutputs(json_schema="[" * 5000), "json_schema: is not valid JSON"),
    (StructuredOutputs(json_schema='{}}], "x": [{'), "json_schema: is not valid JSON"),
    (StructuredOutputs(json_schema="[]"), "json_schema: must be a JSON object"),
    (StructuredOutputs(json_schema="false"), "json_schema: must be a JSON object"),
    (schema(type="foo"), "json_schema: Invalid type: foo"),
    (schema(type="array", uniqueItems=True), "uniqueItems"),
    (schema(**{"not": {}}), '"not"'),
    (schema(**{"if": {}, "then": {}}), '"if", "then"'),
    (schema(type="object", dependentRequired={"a": ["b"]}), "dependentRequired"),
    (schema(type="string", enum=[1]), "Unsatisfiable"),
    (schema(type="integer", minimum=3, maximum=2), "minimum"),
    (schema(type="string", minLength=-1), "minLength"),
    (schema(type="string", format="nosuch"), "nosuch"),
    (schema(type="string", pattern="(?=a)"), "look-around"),
    (schema(oneOf=[{"type": "string"}, {"type": "string", "maxLength": 3}]), "oneOf"),
    (schema(**{"$ref": "#/$defs/none"}), "/$defs/none"),
    (schema(**{"$ref": "http://127.0.0.1:1/s.json"}), "not fetched"),
    (schema(**{"$ref": "#"}), "no output can have this form"),
    (schema(properties={"a": 5}), "object or boolean"),
    (lark("start: foo"), 'grammar: at 1(8): unknown name: "foo"'),
    (lark("this is no grammar"), "grammar: 1(6): Expected"),
    (lark('{"grammars": [{"json_schema": {}}]}'), "grammar: 1(1)"),
    (lark('a: "x"'), "no start rule"),
    (lark('start: "a'), "lexer error"),
    (lark("start: @other"), "unknown grammar"),
    (lark("start: <nosuch>"), "unknown special token"),
    (lark('start: a\na: a "x"'), "no output can have this form"),
    (lark('start: %json {"type": "array"}'), "%json"),
    (lark('start: %regex {"substring_words": "a b"}'), "%regex"),
    (lark("start: <|im_end|>"), "no output"),
    (lark("start: T\nT: /a+/ & /b*/"), "& and ~"),
    (lark("start: T\nT: ~/a+/"), "& and ~"),
]

TOO_COMPLEX = [
    StructuredOutputs(regex="a" * 40_000),
    schema(properties={f"p{i}": {} for i in range(2000)}),
    lark("start: a0\n" + "\n".join(f'a{i}: "x"' for i in range(2500))),
    lark("start: A0\n" + "\n".join(f"A{i}: A{i + 1} A{i + 1}" for i in range(40)) + '\nA40: "y"'),
    lark("start: " + '"a"? ' * 6000),
    lark("start: " + "a? " * 6000 + '\na: "x"'),
    schema(patternProperties={f"^(a|b)*c{{{i}}}$": {} for i in range(40)}),
    schema(type="integer", multipleOf=982_451_653),
    schema(allOf=[{"type": "string", "pattern": f"^(.{{{i}}})*$"} for i in range(2, 20)]),
]


@pytest.mark.parametrize("form", TOO_COMPLEX)
def test_a_form_that_would_take_too_long_is_refused(
    backend: GrammarBackend, form: StructuredOutputs
) -> None:
    with pytest.raises(GrammarError, match="too complex") as caught:
        backend.compile(form)
    assert caught.value.reason == GRAMMAR_TOO_COMPLEX


@pytest.mark.parametrize(("form", "message"), WRONG)
def test_a_form_that_is_wrong_is_refused_in_the_clients_words(
    backend: GrammarBackend, form: StructuredOutputs, message: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        backend.compile(form)
    error = caught.value
    assert error.reason == INVALID_GRAMMAR
    assert message in error.message
    assert "\n" not in error.message and len(error.message) < 400
    for internal in (
        "verbose",
        "no_forcing",
        "lark",
        "guidance",
        "NoExtension",
        "start: /",
        "limits.",
    ):
        assert internal not in error.message


def test_operators_in_texts_and_comments_of_a_grammar_are_none(backend: GrammarBackend) -> None:
    text = 'start: "a & ~b" | /[&~\\/]+:/ // & is no operator here\n'
    assert accept_text(backend.compile(lark(text)), "a & ~b")
    assert accept_text(backend.compile(lark(text)), "&~/:")
