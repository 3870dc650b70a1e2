"""The SDK's clients against whole stacks."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from pagewire import LLM, SamplingParams
from tests.e2e.requests import SIM_VOCABULARY
from tests.e2e.sdk_checks import (
    check_form,
    check_many_requests,
    check_refusals,
    check_stream_and_whole,
)
from tests.e2e.stack import Stack
from worker_svc.sim.oracle import expected_tokens


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """An `LLM` whose own stack serves the clients, too."""
    with LLM(device="sim", sim_step_time_us=5000) as llm:
        yield llm


def test_a_stream_gives_what_the_whole_answer_has(smollm2_stack: Stack) -> None:
    check_stream_and_whole(smollm2_stack.grpc_target)


def test_an_answer_has_the_form_that_is_asked_for(smollm2_stack: Stack) -> None:
    check_form(smollm2_stack.grpc_target)


async def test_many_requests_of_one_async_client_get_their_own_answers(llm: LLM) -> None:
    assert llm._stack is not None
    await check_many_requests(llm._stack.target, llm._stack.api_key)


def test_refusals_name_what_is_wrong(llm: LLM) -> None:
    check_refusals(llm.client)


def test_an_llm_outlives_a_killed_gateway_and_loses_no_prompt(llm: LLM) -> None:
    prompts = [[1000 + i] for i in range(600)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    assert llm._stack is not None
    supervisor = psutil.Process(llm._stack._stack.process.pid)
    (gateway,) = [p for p in supervisor.children() if "gateway" in p.cmdline()]
    killed = []

    class Bar:
        """Kills the gateway when the first prompts are done."""

        def __init__(self, **_: object) -> None:
            self.format_dict = {"elapsed": 1.0}

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None: ...

        def set_postfix_str(self, *_: object, **__: object) -> None: ...

        def update(self, _: int) -> None:
            if not killed:
                gateway.kill()
                killed.append(gateway)

    outputs = llm.generate(prompts, params, use_tqdm=Bar)
    assert killed and len(outputs) == len(prompts)
    for ids, output in zip(prompts, outputs, strict=True):
        expected = expected_tokens(ids, params, 40, SIM_VOCABULARY)
        assert list(output.outputs[0].token_ids) == expected
