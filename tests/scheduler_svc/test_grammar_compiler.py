"""Grammars for requests: off the event loop, bounded in time, and quiet once cancelled."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from pagewire.engine_config import StructuredOutputsConfig
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc import grammar_compiler
from scheduler_svc.grammar import (
    GRAMMAR_MISMATCH,
    GRAMMAR_TIMEOUT,
    GRAMMAR_TOO_COMPLEX,
    INVALID_GRAMMAR,
    NOT_SERVED,
    Grammar,
    GrammarError,
)
from scheduler_svc.grammar_compiler import GrammarCompiler, GrammarModel
from tests.fakes.fake_tokenizer import EOS, FINGERPRINT, VOCAB_SIZE, FakeTokenizer

MODEL = GrammarModel(VOCAB_SIZE, frozenset({EOS}), FINGERPRINT)
AB = StructuredOutputs(regex="ab*")
ROW_SIZE = -(-VOCAB_SIZE // 8)


class Result:
    """What came of one request; its callbacks record the thread that they ran on."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Grammar | GrammarError] = (
            asyncio.get_running_loop().create_future()
        )
        self.threads: list[int] = []

    def take(self, outcome: Grammar | GrammarError) -> None:
        self.threads.append(threading.get_ident())
        self.outcome.set_result(outcome)

    async def grammar(self) -> Grammar:
        outcome = await asyncio.wait_for(self.outcome, 60)
        assert not isinstance(outcome, GrammarError), outcome
        return outcome

    async def error(self) -> GrammarError:
        outcome = await asyncio.wait_for(self.outcome, 60)
        assert isinstance(outcome, GrammarError)
        return outcome


def start(
    compiler: GrammarCompiler,
    form: StructuredOutputs = AB,
    request_id: str = "r",
    output: Sequence[int] = (),
) -> Result:
    result = Result()
    compiler.start(request_id, form, output, result.take, result.take)
    return result


@asynccontextmanager
async def running(
    tokenizers: Sequence[str], model: GrammarModel = MODEL, **settings: float
) -> AsyncIterator[GrammarCompiler]:
    compiler = GrammarCompiler(StructuredOutputsConfig(**settings), tokenizers)  # type: ignore[arg-type]
    compiler.open(model)
    try:
        yield compiler
    finally:
        await compiler.close()


@pytest.fixture
async def tokenizer() -> AsyncIterator[FakeTokenizer]:
    async with FakeTokenizer() as fake:
        yield fake


@pytest.fixture
async def compiler(tokenizer: FakeTokenizer) -> AsyncIterator[GrammarCompiler]:
    async with running((tokenizer.target,)) as made:
        yield made


async def test_a_grammar_comes_on_the_loop_and_later_than_it_was_asked_for(
    compiler: GrammarCompiler,
) -> None:
    result = start(compiler)
    assert not result.outcome.done()
    grammar = await result.grammar()
    assert grammar.accept(ord("a")) and not grammar.accept(ord("x"))
    assert result.threads == [threading.get_ident()]


async def test_a_resumed_request_goes_on_behind_its_output(compiler: GrammarCompiler) -> None:
    grammar = await start(compiler, StructuredOutputs(regex="abc"), output=list(b"ab")).grammar()
    assert grammar.valid_prefix(list(b"c")) == 1
    done = await start(compiler, AB, output=[*b"ab", EOS]).grammar()
    assert done.is_complete


async def test_an_output_that_is_not_of_the_form_is_refused(compiler: GrammarCompiler) -> None:
    error = await start(compiler, AB, output=list(b"aa")).error()
    assert error.reason == GRAMMAR_MISMATCH


async def test_a_wrong_form_harms_no_other_request(compiler: GrammarCompiler) -> None:
    wrong = start(compiler, StructuredOutputs(regex="a("), "wrong")
    right = start(compiler, request_id="right")
    assert (await wrong.error()).reason == INVALID_GRAMMAR
    assert (await wrong.error()).message == "regex: unclosed group"
    await right.grammar()


async def test_a_bug_in_the_compiler_ends_its_request_only(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(compiler).grammar()
    original = grammar_compiler._compile

    def compile_(backend: object, outputs: StructuredOutputs, output: object) -> Grammar:
        if outputs.regex == "boom":
            raise RuntimeError("secret")
        return original(backend, outputs, output)  # type: ignore[arg-type]

    monkeypatch.setattr(grammar_compiler, "_compile", compile_)
    error = await start(compiler, StructuredOutputs(regex="boom")).error()
    assert error.reason == INVALID_GRAMMAR and "secret" not in error.message
    await start(compiler, request_id="other").grammar()


async def test_a_cancelled_request_hears_nothing(compiler: GrammarCompiler) -> None:
    cancelled, other = start(compiler, request_id="a"), start(compiler, request_id="b")
    compiler.cancel("a")
    compiler.cancel("nobody")
    await other.grammar()
    again = start(compiler, request_id="a")  # the id is free at once
    await again.grammar()
    await asyncio.sleep(0)
    assert cancelled.threads == []


async def test_a_request_can_be_cancelled_when_its_grammar_is_just_made(
    compiler: GrammarCompiler,
) -> None:
    """The thread has answered and the loop has not looked yet."""
    await start(compiler).grammar()
    result = start(compiler)
    await asyncio.sleep(0)  # the job goes to its thread
    for pool_thread in threading.enumerate():
        if pool_thread.name.startswith("grammar-compile"):
            compiler._compile_pool.submit(int).result(20)  # whatever was before it is done
    compiler.cancel("r")
    await start(compiler, request_id="other").grammar()
    assert result.threads == []


async def test_close_ends_what_is_not_ready_without_a_word(tokenizer: FakeTokenizer) -> None:
    async with running((tokenizer.target,)) as compiler:
        result = start(compiler)
    await asyncio.sleep(0)
    assert result.threads == []
    await compiler.close()


async def test_without_a_tokenizer_the_flag_is_named() -> None:
    async with running(()) as compiler:
        error = await start(compiler).error()
    assert error.reason == NOT_SERVED
    assert "--tokenizers" in error.message


async def test_a_model_without_an_end_is_not_served(tokenizer: FakeTokenizer) -> None:
    model = GrammarModel(VOCAB_SIZE, frozenset(), FINGERPRINT)
    async with running((tokenizer.target,), model) as compiler:
        error = await start(compiler).error()
    assert error.reason == NOT_SERVED and "end-of-sequence" in error.message


async def test_a_tokenizer_of_another_model_is_named_and_later_asked_again() -> None:
    async with (
        FakeTokenizer(fingerprint="other") as tokenizer,
        running((tokenizer.target,)) as compiler,
    ):
        error = await start(compiler).error()
        assert error.reason == NOT_SERVED
        assert "another vocabulary" in error.message
        tokenizer.fingerprint = FINGERPRINT
        while isinstance(outcome := await start(compiler).outcome, GrammarError):
            assert outcome.reason == NOT_SERVED


async def test_a_tokenizer_that_never_comes_ends_requests_after_their_time() -> None:
    async with running(("127.0.0.1:1",), grammar_compile_timeout_s=0.05) as compiler:
        first, second = start(compiler, request_id="a"), start(compiler, request_id="b")
        for result in (first, second):
            error = await result.error()
            assert error.reason == GRAMMAR_TIMEOUT
            assert "no tokenizer gave the model's vocabulary within 0.05 s" in error.message


async def test_a_compile_over_its_time_ends_its_request_and_others_go_on(
    tokenizer: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = grammar_compiler._compile
    release = threading.Event()

    def compile_(backend: object, outputs: StructuredOutputs, output: object) -> Grammar:
        if outputs.regex == "slow":
            assert release.wait(60)
        return original(backend, outputs, output)  # type: ignore[arg-type]

    monkeypatch.setattr(grammar_compiler, "_compile", compile_)
    async with running((tokenizer.target,), grammar_compile_timeout_s=0.2) as compiler:
        await grammar_of_any_try(compiler)  # the vocabulary is there
        error = await start(compiler, StructuredOutputs(regex="slow"), "slow").error()
        await grammar_of_any_try(compiler)  # on the other thread
        release.set()
    assert error.reason == GRAMMAR_TIMEOUT
    assert error.message == "structured_outputs: it was not compiled within 0.2 s"


async def grammar_of_any_try(compiler: GrammarCompiler) -> None:
    """On a slow machine any one try may be over its time."""
    while isinstance(outcome := await start(compiler).outcome, GrammarError):
        assert outcome.reason == GRAMMAR_TIMEOUT


HEAVY = StructuredOutputs(
    # Doubles at each step until the library's limit; more than 300 ms of work without the GIL.
    grammar="start: A0\n" + "\n".join(f"A{i}: A{i + 1} A{i + 1}" for i in range(40)) + '\nA40: "y"'
)


async def test_the_loop_turns_while_a_heavy_form_is_compiled(compiler: GrammarCompiler) -> None:
    await start(compiler).grammar()  # the vocabulary is there
    heavy = start(compiler, HEAVY)
    num_turns = 0
    while not heavy.outcome.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert (await heavy.error()).reason == GRAMMAR_TOO_COMPLEX
    # A loop that was held up would turn a handful of times.
    assert num_turns > 200


def chain_of_definitions(num_links: int, num_in_group: int = 1000) -> StructuredOutputs:
    """A schema whose definitions each need the next one, in as many groups as it takes."""
    groups: dict[str, dict[str, object]] = {}
    for index in range(num_links):
        following = index + 1
        target = f"#/$defs/g{following // num_in_group}/d{following}"
        link = {"type": "object", "properties": {"a": {"$ref": target}}, "required": ["a"]}
        groups.setdefault(f"g{index // num_in_group}", {})[f"d{index}"] = link
    groups.setdefault(f"g{num_links // num_in_group}", {})[f"d{num_links}"] = {"type": "null"}
    schema = {"$ref": "#/$defs/g0/d0", "$defs": groups}
    return StructuredOutputs(json_schema=json.dumps(schema, separators=(",", ":")))


async def test_a_chain_of_definitions_as_long_as_a_form_may_be_does_not_end_the_process(
    compiler: GrammarCompiler,
) -> None:
    """Such a chain is walked recursively; an ordinary stack would overrun."""
    form = chain_of_definitions(2800)
    assert form.num_bytes > 0.9 * StructuredOutputsConfig().max_grammar_bytes
    grammar = await start(compiler, form).grammar()
    assert all(map(grammar.accept, b'{"a": {"a": '))
    (masks,) = await compiler.masks([(grammar, list(b'{"'))])
    assert isinstance(masks, bytes)


async def test_masks_of_a_step_come_in_order_and_a_bad_grammar_spoils_its_own_only(
    compiler: GrammarCompiler,
) -> None:
    class Bad:
        def masks(self, draft_token_ids: Sequence[int]) -> bytes:
            raise GrammarError(GRAMMAR_TOO_COMPLEX, "too much")

    forms = [StructuredOutputs(choice=(chr(97 + i) * 3,)) for i in range(9)]
    grammars = [await start(compiler, form).grammar() for form in forms]
    jobs: list[tuple[Grammar, Sequence[int]]] = [
        (grammar, [97 + i]) for i, grammar in enumerate(grammars)
    ]
    jobs.insert(4, (Bad(), ()))  # type: ignore[arg-type]
    results = await compiler.masks(jobs)
    error = results.pop(4)
    assert isinstance(error, GrammarError) and error.message == "too much"
    for i, masks in enumerate(results):
        assert isinstance(masks, bytes) and len(masks) == 2 * ROW_SIZE
        only = (1 << (97 + i)).to_bytes(ROW_SIZE, "little")
        assert masks == only * 2
    assert await compiler.masks([]) == []
