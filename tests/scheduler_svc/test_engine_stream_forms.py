"""Admission of requests whose output has a form: it comes with their grammar."""

import time

import pytest

from pagewire.v1 import common_pb2
from scheduler_svc.grammar import INVALID_GRAMMAR, GrammarError
from tests.scheduler_svc.conftest import running_stack
from tests.scheduler_svc.gateway_client import GatewayClient
from tests.scheduler_svc.grammars import FakeGrammars, TextGrammar
from tests.scheduler_svc.sim_model import expected_output

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]
FORM = common_pb2.StructuredOutputs(regex="a")


@pytest.fixture
async def grammars():
    return FakeGrammars()


@pytest.fixture
async def gateway(grammars):
    async with running_stack(grammars) as stack:
        gateway = GatewayClient(stack.stub)
        await gateway.open()
        yield gateway


async def test_a_request_is_admitted_with_its_grammar(gateway, grammars):
    await gateway.add(1, PROMPT, structured_outputs=FORM)
    await grammars.wait_started("g-1")
    await gateway.add(2, PROMPT)
    await gateway.read_finished(2)
    assert gateway.admitted == [2]
    grammars.make_ready("g-1", TextGrammar(expected_output(PROMPT, 3)))
    await gateway.read_finished(1)
    assert gateway.admitted == [2, 1]
    assert gateway.finished[1] == common_pb2.FINISH_REASON_STOP
    assert gateway.token_ids[1] == expected_output(PROMPT, 3)


async def test_a_bad_grammar_is_a_refusal_and_frees_the_handle(gateway, grammars):
    await gateway.add(1, PROMPT, structured_outputs=FORM)
    await grammars.wait_started("g-1")
    grammars.fail("g-1", GrammarError(INVALID_GRAMMAR, "it is wrong"))
    await gateway.read_until(lambda: 1 in gateway.refusals)
    assert gateway.refusals[1].reason == INVALID_GRAMMAR
    assert gateway.refusals[1].message == "it is wrong"
    await gateway.add(1, PROMPT, request_id="again")
    await gateway.read_finished(1)
    assert gateway.errors == {}


async def test_a_deadline_before_admission_is_a_refusal(gateway, grammars):
    deadline_ns = time.time_ns() + 50_000_000
    await gateway.add(1, PROMPT, structured_outputs=FORM, deadline_ns=deadline_ns)
    await gateway.read_until(lambda: 1 in gateway.refusals)
    assert gateway.admitted == []
    assert grammars.cancelled == ["g-1"]


async def test_an_abort_before_admission_ends_the_request(gateway, grammars):
    await gateway.add(1, PROMPT, structured_outputs=FORM)
    await grammars.wait_started("g-1")
    await gateway.abort(1)
    await gateway.read_finished(1)
    assert gateway.finished[1] == common_pb2.FINISH_REASON_ABORT
    assert grammars.cancelled == ["g-1"]
