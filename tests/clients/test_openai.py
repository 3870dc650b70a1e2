"""OpenAI's Python client, as it is, uses a whole stack: models, chat, completions, errors.

Forms and tools are in test_openai_forms.py, responses in tests/e2e/test_responses.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.served import API_KEY, MAX_MODEL_LEN, MODEL, Served

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
CHAT: Any = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 16}
SHORT: Any = CHAT | {"max_tokens": 12}
PROMPT = "The capital of France is"
COMPLETION: Any = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 6}


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.base_url, api_key=API_KEY, max_retries=0) as each:
        yield each


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL) == model


def test_a_streamed_chat_adds_up_to_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT)
    (choice,) = whole.choices
    assert "Paris" in (choice.message.content or "")
    assert choice.message.role == "assistant" and choice.finish_reason == "stop"
    chunks = list(
        client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    )
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {
        (chunks[0].id, chunks[0].created, MODEL)
    }
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == choice.message.content
    assert [chunk.usage for chunk in chunks if chunk.usage] == [chunks[-1].usage]
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_helper_for_streams_of_a_chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, logprobs=True)
    with client.chat.completions.stream(**CHAT, logprobs=True) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].logprobs == whole.choices[0].logprobs
    assert final.choices[0].finish_reason == "stop"


def test_several_outputs_with_logprobs(client: openai.OpenAI) -> None:
    options = {**CHAT, "temperature": 0.8, "seed": 7, "max_tokens": 5}
    answer = client.chat.completions.create(**options, n=2, logprobs=True, top_logprobs=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        tokens = choice.logprobs.content
        written = b"".join(bytes(token.bytes or ()) for token in tokens)
        assert written.decode().startswith(choice.message.content or "?")
        for token in tokens:
            assert token.logprob <= token.top_logprobs[0].logprob <= 0
            assert len(token.top_logprobs) == 3
    again = client.chat.completions.create(**options, n=2)
    texts = [[choice.message.content for choice in each.choices] for each in (answer, again)]
    assert texts[0] == texts[1]


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(**COMPLETION)
    assert "Paris" in answer.choices[0].text
    assert answer.usage is not None and answer.usage.completion_tokens == 6
    chunks = list(client.completions.create(**COMPLETION, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason == "length"


def test_several_prompts_each_answered_as_if_it_were_alone(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "Two and two make", "Water is made of"]
    options = {**COMPLETION, "prompt": prompts}
    together = client.completions.create(**options)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    alone = [client.completions.create(**COMPLETION | {"prompt": each}) for each in prompts]
    assert [c.text for c in together.choices] == [each.choices[0].text for each in alone]


def test_the_logprobs_of_a_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(**COMPLETION, echo=True, logprobs=2)
    (choice,) = answer.choices
    assert choice.text.startswith(PROMPT) and choice.logprobs is not None
    tokens, logprobs = choice.logprobs.tokens, choice.logprobs.token_logprobs
    offsets = choice.logprobs.text_offset
    assert tokens is not None and logprobs is not None and offsets is not None
    assert "".join(tokens) == choice.text
    assert logprobs[0] is None and all(logprob <= 0 for logprob in logprobs[1:])
    assert [choice.text[at:].startswith(t) for at, t in zip(offsets, tokens, strict=True)] == [
        True
    ] * len(tokens)


def test_fields_of_vllm_in_an_extra_body(client: openai.OpenAI) -> None:
    def ask(**extra: Any) -> Any:
        return client.chat.completions.create(**SHORT, extra_body=extra).choices[0]

    plain = ask(return_token_ids=True)
    ids = plain.token_ids
    warm: Any = {**SHORT, "temperature": 2.0}
    cold = client.chat.completions.create(**warm, extra_body={"top_k": 1}).choices[0]
    assert cold.message.content == plain.message.content
    stopped = ask(stop_token_ids=[ids[2]], return_token_ids=True)
    assert stopped.token_ids == ids[:3] and stopped.stop_reason == ids[2]
    longer = ask(min_tokens=len(ids) + 2, return_token_ids=True)
    assert len(longer.token_ids) >= len(ids) + 2
    assert ask(structured_outputs={"choice": ["Rome", "Paris"]}).message.content == "Paris"
    assert ask(structured_outputs={"regex": "[A-Z]{3}"}).message.content.isupper()
    only = ask(allowed_token_ids=ids[:1], return_token_ids=True)
    assert set(only.token_ids) == {ids[0]}


def test_a_stop_string(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT).choices[0].message.content or ""
    choice = client.chat.completions.create(**CHAT, stop=" France").choices[0]
    assert choice.message.content == whole.partition(" France")[0] != whole
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (CHAT | {"temperature": -1}, "temperature"),
        (CHAT | {"max_tokens": MAX_MODEL_LEN}, "max_tokens"),
        (CHAT | {"messages": []}, "messages"),
        (CHAT | {"extra_body": {"guided_json": {}}}, "guided_json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_a_bad_request_that_names_it(
    client: openai.OpenAI, body: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**body)
    assert caught.value.param == param and param in caught.value.message
    assert caught.value.type == "invalid_request_error" and caught.value.request_id


def test_what_is_not_there_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.chat.completions.create(**CHAT | {"model": "gpt-9"})
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.NotFoundError):
        client.files.list()


def test_a_wrong_key_is_not_let_in(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="wrong").models.list()
    assert "key" in caught.value.message


def test_a_timeout_of_the_client_harms_no_one_else(client: openai.OpenAI, served: Served) -> None:
    long: Any = CHAT | {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(**long)
    assert client.chat.completions.create(**CHAT).choices[0].finish_reason == "stop"
    with served.http() as http:
        # Its work ends too; the test's own timeout bounds the wait.
        while http.get("/load").json()["server_load"] != 0:
            pass


async def test_the_client_for_asyncio(served: Served) -> None:
    async with openai.AsyncOpenAI(base_url=served.base_url, api_key=API_KEY) as client:

        async def streamed(prompt: str) -> str:
            chunks = await client.completions.create(**COMPLETION | {"prompt": prompt}, stream=True)
            return "".join([chunk.choices[0].text async for chunk in chunks])

        prompts = [PROMPT, "Two and two make", "Water is made of", "Once upon a time"]
        texts = await asyncio.gather(*map(streamed, prompts))
        whole = await client.completions.create(**COMPLETION | {"prompt": prompts})
        assert texts == [choice.text for choice in whole.choices]
        # A stream that is left early ends its request, and the connection pool goes on.
        async with await client.chat.completions.create(**CHAT, stream=True) as stream:
            await anext(aiter(stream))
        assert (await client.models.list()).data[0].id == MODEL
