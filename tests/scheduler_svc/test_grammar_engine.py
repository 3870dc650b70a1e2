"""Forms in the engine's loop: admission, masks in time, and every way a request can end."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from scheduler_svc.grammar import GRAMMAR_TOO_COMPLEX, INVALID_GRAMMAR, GrammarError
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.factories import make_core_request
from tests.scheduler_svc.fakes import FakeClient, FakeExecutor, make_config
from tests.scheduler_svc.grammars import FakeGrammars, TextGrammar
from tests.scheduler_svc.sim_model import expected_output

PROMPT = [1, 2, 3, 4, 5, 6]
FORM = StructuredOutputs(regex="a")


class Engine:
    def __init__(self, **config):
        self.executor = FakeExecutor()
        self.grammars = FakeGrammars()
        self.core = EngineCore(make_config(**config), self.executor, self.grammars)
        self.client = FakeClient()
        self.client_id = self.core.attach(self.client)

    def add(self, **overrides):
        overrides = {"structured_outputs": FORM, "max_tokens": 6} | overrides
        request = make_core_request(PROMPT, client_id=self.client_id, **overrides)
        return request.request_id, self.core.add_request(request)

    def make_ready(self, request_id, grammar):
        self.grammars.make_ready(request_id, grammar)


@asynccontextmanager
async def running(**config):
    engine = Engine(**config)
    ready = asyncio.Event()
    engine.core.on_state = lambda state: ready.set() if state is EngineState.READY else None
    task = asyncio.create_task(engine.core.run())
    try:
        await ready.wait()
        yield engine
    finally:
        task.cancel()
        await asyncio.wait((task,))


def text(num_tokens=6):
    return expected_output(PROMPT, num_tokens)


async def test_the_compiler_hears_of_the_model_once():
    async with running() as engine:
        assert engine.grammars.models[0].vocab_size == engine.executor.facts.vocab_size
        engine.executor.lose()
        await engine.executor.wait_initialized(2)
    assert len(engine.grammars.models) == 1


async def test_a_request_is_admitted_when_its_grammar_is_ready_and_not_before():
    async with running() as engine:
        request_id, is_admitted = engine.add()
        assert not is_admitted
        other, is_admitted = engine.add(structured_outputs=None)
        assert is_admitted
        await engine.client.wait_finished(other)
        assert engine.client.admitted == []
        engine.make_ready(request_id, TextGrammar(text(3)))
        assert engine.client.admitted == [request_id]
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == text(3)
    assert engine.client.finished[request_id].reason is FinishReason.STOP


@pytest.mark.parametrize("async_scheduling", [True, False])
async def test_every_masked_step_gets_its_masks_once_all_tokens_before_are_known(async_scheduling):
    async with running(async_scheduling=async_scheduling) as engine:
        grammar = TextGrammar(text(6), is_open=True)
        grammar.forced_tokens = lambda max_tokens: []
        request_id, _ = engine.add()
        engine.make_ready(request_id, grammar)
        await engine.client.wait_finished(request_id)
    masked = [output for output in engine.executor.steps if output.masked_rows]
    # Each mask of this grammar is the number of tokens that it has taken in.
    given = [engine.executor.masks[id(output)] for output in masked]
    assert given == [{0: bytes([number])} for number in range(6)]
    assert engine.executor.max_in_flight == (2 if async_scheduling else 1)


async def test_a_row_that_ended_before_its_masks_gets_none():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id, _ = engine.add()
        grammar = TextGrammar(text(6), is_open=True)
        grammar.forced_tokens = lambda max_tokens: []
        engine.make_ready(request_id, grammar)
        await engine.executor.wait_in_flight(2)
        engine.core.finish_requests([request_id])
        engine.executor.go_on.set()
        await engine.executor.wait_empty()
    assert engine.executor.masks[id(engine.executor.steps[1])] == {}


async def test_a_mask_error_of_a_request_that_ended_is_nobody_elses():
    async with running() as engine:
        engine.grammars.go_on.clear()
        request_id, _ = engine.add()
        grammar = TextGrammar(text())
        grammar.mask_error = GrammarError(GRAMMAR_TOO_COMPLEX, "too much")
        engine.make_ready(request_id, grammar)
        await engine.grammars.in_masks.wait()
        # Its client comes again, with another request of the same id.
        engine.core.detach(engine.client_id, [request_id])
        engine.client_id = engine.core.attach(engine.client)
        engine.add(request_id=request_id, structured_outputs=None)
        engine.grammars.go_on.set()
        await engine.client.wait_finished(request_id)
    assert engine.client.finished[request_id].reason is FinishReason.LENGTH
    assert engine.client.token_ids[request_id] == text()


@pytest.mark.parametrize("what", ["abort", "reset", "lose"])
async def test_nothing_breaks_while_masks_are_made(what):
    async with running() as engine:
        engine.grammars.go_on.clear()
        request_id, _ = engine.add()
        engine.make_ready(request_id, TextGrammar(text(6)))
        await engine.grammars.in_masks.wait()
        if what == "abort":
            engine.core.finish_requests([request_id])
        elif what == "reset":
            engine.core.reset_prefix_cache(reset_running_requests=True)
        else:
            engine.executor.lose()
        engine.grammars.go_on.set()
        await engine.client.wait_finished(request_id)
        other, _ = engine.add(structured_outputs=None)
        await engine.client.wait_finished(other)
    assert engine.client.token_ids[other] == text()
    if what != "abort":
        assert engine.client.token_ids[request_id] == text(6)
        assert engine.client.finished[request_id].reason is FinishReason.STOP


async def test_a_bad_grammar_ends_its_request_alone():
    async with running() as engine:
        request_id, _ = engine.add()
        other, _ = engine.add(structured_outputs=None)
        engine.grammars.fail(request_id, GrammarError(INVALID_GRAMMAR, "it is wrong"))
        end = engine.client.finished[request_id]
        await engine.client.wait_finished(other)
    assert isinstance(end.error(), InvalidRequestError)
    assert end.error().message == "it is wrong"
    assert request_id in engine.grammars.cancelled
    assert request_id not in engine.client.token_ids
    assert engine.client.token_ids[other] == text()


async def test_a_grammar_that_fails_at_its_masks_ends_its_request_alone():
    async with running() as engine:
        request_id, _ = engine.add()
        other, _ = engine.add(structured_outputs=None)
        grammar = TextGrammar(text())
        grammar.mask_error = GrammarError(GRAMMAR_TOO_COMPLEX, "too much")
        engine.make_ready(request_id, grammar)
        await engine.client.wait_finished(request_id, other)
    assert engine.client.finished[request_id].error_reason == GRAMMAR_TOO_COMPLEX
    assert engine.client.token_ids[other] == text()


async def test_an_abort_forgets_the_grammar_that_is_being_made():
    async with running() as engine:
        request_id, _ = engine.add()
        engine.core.finish_requests([request_id])
        assert engine.grammars.cancelled == [request_id]
        gone, _ = engine.add()
        engine.core.detach(engine.client_id, [gone])
        assert gone in engine.grammars.cancelled


async def test_a_form_that_is_too_long_is_refused_at_once():
    async with running() as engine:
        with pytest.raises(InvalidRequestError, match="structured_outputs"):
            engine.add(structured_outputs=StructuredOutputs(regex="a" * 300_000))
        assert engine.grammars.jobs == {}


async def test_a_resumed_request_brings_its_output_to_its_grammar():
    async with running() as engine:
        request_id, _ = engine.add(output_token_ids=text(2), is_resumed=True)
        job = engine.grammars.jobs[request_id]
        assert (job.output_token_ids, job.is_resumed) == (text(2), True)
        grammar = TextGrammar(text(4))
        grammar.num_accepted = 2
        engine.make_ready(request_id, grammar)
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == text(4)[2:]


async def test_a_lost_worker_changes_nothing_about_a_form():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id, _ = engine.add()
        engine.make_ready(request_id, TextGrammar(text(6)))
        await engine.executor.in_step.wait()
        engine.executor.lose()
        await engine.executor.wait_initialized(2)
        engine.executor.go_on.set()
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == text(6)
    assert engine.client.finished[request_id].reason is FinishReason.STOP


async def test_steps_behind_a_failed_one_get_masks_so_that_no_worker_waits():
    async with running() as engine:
        engine.executor.go_on.clear()
        grammar = TextGrammar(text(6))
        grammar.forced_tokens = lambda max_tokens: []
        request_id, _ = engine.add()
        engine.make_ready(request_id, grammar)
        await engine.executor.wait_in_flight(2)
        engine.executor.num_failing_steps = 1
        engine.executor.go_on.set()
        await engine.client.wait_finished(request_id)
    assert engine.executor.masks[id(engine.executor.steps[1])] == {}
    assert engine.client.token_ids[request_id] == text(6)
