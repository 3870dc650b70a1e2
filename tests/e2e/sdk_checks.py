"""What the SDK's clients must get, wherever the stack is that they talk to."""

from __future__ import annotations

import asyncio

import pytest

from pagewire import AsyncClient, Client, SamplingParams, StructuredOutputs
from pagewire.errors import InvalidRequestError, NotFoundError
from tests.e2e.requests import SIM_VOCABULARY
from worker_svc.sim.oracle import expected_tokens

QUESTION = "What is the capital of France?"


def check_stream_and_whole(target: str) -> None:
    """A stream gives what the whole answer has; the target serves a real model."""
    with Client(target) as client:
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


def check_form(target: str) -> None:
    """An answer has the form that is asked for; the target serves a real model."""
    form = StructuredOutputs(choice=("Paris", "London"))
    with Client(target) as client:
        answer = client.chat(QUESTION, structured_outputs=form, temperature=0)
    assert answer.text in ("Paris", "London") and answer.outputs[0].finish_reason == "stop"


async def check_many_requests(target: str, api_key: str | None = None) -> None:
    """Many requests of one client get their own answers; the target is simulated."""
    prompts = [[1000 + i, 2000 + i] for i in range(40)]
    async with AsyncClient(target, api_key=api_key) as client:
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


def check_refusals(client: Client) -> None:
    """Refusals name what is wrong."""
    with pytest.raises(NotFoundError):
        client.generate("a", model="nope")
    with pytest.raises(InvalidRequestError) as caught:
        client.generate("a", max_tokens=10**6)
    assert (caught.value.field, caught.value.reason) == ("max_tokens", "CONTEXT_LENGTH_EXCEEDED")
