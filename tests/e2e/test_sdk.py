"""The SDK's clients against whole stacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psutil
import pytest

from pagewire import LLM, AsyncClient, Client, SamplingParams, StructuredOutputs
from pagewire.errors import InvalidRequestError, NotFoundError
from tests.e2e.requests import SIM_VOCABULARY
from tests.e2e.stack import Stack
from worker_svc.sim.oracle import expected_tokens

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """An `LLM` whose own stack serves the clients, too."""
    with LLM(device="sim", sim_step_time_us=5000) as llm:
        yield llm


def test_a_stream_gives_what_the_whole_answer_has(smollm2_stack: Stack) -> None:
    with Client(smollm2_stack.grpc_target) as client:
        whole = client.chat(QUESTION, temperature=0, max_tokens=12, logprobs=1)
        with client.chat_stream(QUESTION, temperature=0, max_tokens=12) as stream:
            deltas = list(stream)
        (output,) = whole.outputs
        assert "".join(delta.text for delta in deltas) == output.text
        assert stream.usage.completion_tokens == whole.usage.completion_tokens
        assert len(output.token_ids) == whole.usage.completion_tokens == len(output.logprobs or ())
        assert whole.usage.prompt_tokens == client.count_tokens(
            [{"role": "user", "content": QUESTION}]
        )
        assert client.detokenize(client.tokenize("Grüße, 世界")) == "Grüße, 世界"


def test_an_answer_has_the_form_that_is_asked_for(smollm2_stack: Stack) -> None:
    form = StructuredOutputs(choice=("Paris", "London"))
    with Client(smollm2_stack.grpc_target) as client:
        answer = client.chat(QUESTION, structured_outputs=form, temperature=0)
    assert answer.text in ("Paris", "London") and answer.outputs[0].finish_reason == "stop"


async def test_many_requests_of_one_async_client_get_their_own_answers(llm: LLM) -> None:
    prompts = [[1000 + i, 2000 + i] for i in range(40)]
    assert llm._stack is not None
    async with AsyncClient(llm._stack.target, api_key=llm._stack.api_key) as client:
        outputs = await asyncio.gather(
            *(
                client.generate(
                    ids, n=2, seed=7, max_tokens=9, ignore_eos=True, return_token_ids=True
                )
                for ids in prompts
            )
        )
    for ids, output in zip(prompts, outputs, strict=True):
        for child, each in enumerate(output.outputs):
            params = SamplingParams(seed=7 + child, max_tokens=9, ignore_eos=True)
            assert list(each.token_ids) == expected_tokens(ids, params, 9, SIM_VOCABULARY)


def test_refusals_name_what_is_wrong(llm: LLM) -> None:
    with pytest.raises(NotFoundError):
        llm.client.generate("a", model="nope")
    with pytest.raises(InvalidRequestError) as caught:
        llm.client.generate("a", max_tokens=10**6)
    assert (caught.value.field, caught.value.reason) == ("max_tokens", "CONTEXT_LENGTH_EXCEEDED")


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
