"""How log-probabilities are written: two shapes, prompts, torn characters, minus infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.generation import Logprob, Output, TokenLogprobs
from gateway.http.logprobs import (
    MIN_LOGPROB,
    CompletionLogprobs,
    TokenFormat,
    chat_logprobs,
    prompt_logprobs,
)
from tests.fakes.fake_scheduler import MODEL, VOCAB_SIZE
from tests.fakes.fake_tokenizer import encode
from tests.gateway.conftest import Gateway
from tests.gateway.http.events import events_of

PLAIN, AS_IDS = TokenFormat(), TokenFormat(as_token_ids=True)


def place(token: bytes, *top: bytes, logprob: float = -1.0) -> TokenLogprobs:
    """A place whose tokens have their first byte as id; candidates fall by one from -0.5."""
    candidates = [Logprob(each[0], each, -0.5 - i, i + 1) for i, each in enumerate(top)]
    return TokenLogprobs(Logprob(token[0], token, logprob, 7), candidates)


def columns(writer: CompletionLogprobs, *places: TokenLogprobs) -> dict[str, Any]:
    return writer.write(Output(0, logprobs=list(places)), None)


def test_chat_has_an_entry_a_token_with_its_bytes() -> None:
    found = chat_logprobs([place(b"a", b"b", b"c")], 1, PLAIN)
    assert found == {
        "content": [
            {
                "token": "a",
                "logprob": -1.0,
                "bytes": [97],
                "top_logprobs": [{"token": "b", "logprob": -0.5, "bytes": [98]}],
            }
        ],
        "refusal": None,
    }


@pytest.mark.parametrize(
    ("token_format", "token"), [(PLAIN, "\ufffd"), (AS_IDS, "token_id:240")], ids=["text", "id"]
)
def test_a_part_of_a_character_has_its_own_bytes(token_format: TokenFormat, token: str) -> None:
    (entry,) = chat_logprobs([place(b"\xf0\x9f")], 0, token_format)["content"]
    assert (entry["token"], entry["bytes"], entry["top_logprobs"]) == (token, [0xF0, 0x9F], [])


def test_what_could_not_be_drawn_has_the_least_logprob_of_json() -> None:
    impossible = place(b"a", logprob=-math.inf)
    assert chat_logprobs([impossible], 0, PLAIN)["content"][0]["logprob"] == MIN_LOGPROB
    assert columns(CompletionLogprobs(0, PLAIN), impossible)["token_logprobs"] == [MIN_LOGPROB]


def test_completions_have_the_token_itself_among_the_likeliest() -> None:
    found = columns(CompletionLogprobs(2, PLAIN), place(b"a", b"b", b"c", b"d"), place(b"b", b"b"))
    assert found == {
        "text_offset": [0, 1],
        "token_logprobs": [-1.0, -1.0],
        "tokens": ["a", "b"],
        "top_logprobs": [{"a": -1.0, "b": -0.5, "c": -1.5}, {"b": -1.0}],
    }


def test_offsets_go_on_in_a_stream_and_stay_at_an_unfinished_character() -> None:
    writer = CompletionLogprobs(1, PLAIN)
    face = "\U0001f600".encode()
    found = columns(writer, place(b"ab"), place(face[:2], face[:3]))
    assert found["text_offset"] == [0, 2]
    assert found["tokens"] == ["ab", r"bytes:\xf0\x9f"]
    assert found["top_logprobs"][1] == {r"bytes:\xf0\x9f": -1.0, r"bytes:\xf0\x9f\x98": -0.5}
    assert columns(writer, place(face[2:]), place(b"c"))["text_offset"] == [2, 3]
    other = writer.write(Output(1, logprobs=[place(b"x")]), None)
    assert other["text_offset"] == [0]


def test_an_echoed_prompt_comes_first_and_its_first_token_has_no_logprob() -> None:
    output = Output(0, logprobs=[place(b"c")])
    output.first_prompt_token, output.prompt_logprobs = b"a", [None, place(b"b", b"b")]
    writer = CompletionLogprobs(1, AS_IDS)
    assert writer.write(output, 97) == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -1.0, -1.0],
        "tokens": ["token_id:97", "token_id:98", "token_id:99"],
        "top_logprobs": [None, {"token_id:98": -1.0}, {"token_id:99": -1.0}],
    }


def test_prompts_have_vllms_form() -> None:
    assert prompt_logprobs([None, place(b"a", b"b", b"c")], 1) == [
        None,
        {
            "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
            "97": {"logprob": -1.0, "rank": 7, "decoded_token": "a"},
        },
    ]


async def complete(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": "abc", "max_tokens": 3, "temperature": 0} | fields
    answer = await gateway.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def tokens_of(choice: dict[str, Any]) -> Sequence[str]:
    tokens: Sequence[str] = choice["logprobs"]["tokens"]
    return tokens


async def test_completions_ask_for_logprobs_and_spell_them(gateway: Gateway) -> None:
    (choice,) = (await complete(gateway, logprobs=2))["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-0.5] * 3,
        "tokens": ["c", "b", "a"],
        "top_logprobs": [{"c": -0.5, "d": -1.5}, {"b": -0.5, "c": -1.5}, {"a": -0.5, "b": -1.5}],
    }
    assert not gateway.scheduler.adds[0].sampling_params.HasField("prompt_logprobs")


async def test_logprobs_end_with_the_token_that_completed_a_stop_string(gateway: Gateway) -> None:
    (choice,) = (await complete(gateway, logprobs=0, max_tokens=9, stop=["ac"]))["choices"]
    assert choice["text"] == "cb"
    assert tokens_of(choice) == ["c", "b", "a", "c"]


async def test_echo_gives_the_prompt_and_its_logprobs_too(gateway: Gateway) -> None:
    (choice,) = (await complete(gateway, logprobs=1, echo=True, max_tokens=1))["choices"]
    assert choice["text"] == "abcc"
    # The text is as it was written; its tokens begin with the one that the model wants.
    assert tokens_of(choice) == ["", "a", "b", "c", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_without_output_is_about_the_prompt_alone(
    gateway: Gateway, stream: bool
) -> None:
    body = {"model": MODEL, "prompt": [encode("ab"), encode("xyz")], "max_tokens": 0}
    body |= {"echo": True, "logprobs": 1, "temperature": 0, "return_token_ids": True}
    if stream:
        answer = await gateway.http.post("/v1/completions", json=body | {"stream": True})
        chunks = events_of(answer.text)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        choices.sort(key=lambda choice: int(choice["index"]))
    else:
        value = await complete(gateway, **body)
        choices = value["choices"]
        assert value["usage"]["completion_tokens"] == 0
    assert [choice["text"] for choice in choices] == ["ab", "xyz"]
    assert [tokens_of(choice) for choice in choices] == [["a", "b"], ["x", "y", "z"]]
    for choice in choices:
        assert (choice["finish_reason"], choice["token_ids"]) == ("length", [])
    assert choices[1]["prompt_token_ids"] == encode("xyz")


@pytest.mark.parametrize("stream", [False, True])
async def test_many_logprobs_are_written_alike(gateway: Gateway, stream: bool) -> None:
    prompt = encode("abcd" * 100)
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 20}
    answer = await gateway.http.post("/v1/completions", json=body | {"stream": stream})
    value = events_of(answer.text)[0] if stream else answer.json()
    (choice,) = value["choices"]
    assert choice["text"] == "abcd" * 100
    assert tokens_of(choice) == list("abcd" * 100)
    assert {len(top) for top in choice["logprobs"]["top_logprobs"][1:]} == {20}


async def test_prompt_logprobs_come_with_a_whole_answer_only(gateway: Gateway) -> None:
    (choice,) = (await complete(gateway, prompt=encode("ab"), prompt_logprobs=1))["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}},
    ]
    assert choice["logprobs"] is None
    body = {"model": MODEL, "prompt": "ab", "prompt_logprobs": 0, "stream": True}
    answer = await gateway.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")


async def test_more_logprobs_than_the_engine_gives_are_refused(gateway: Gateway) -> None:
    gateway.scheduler.info.max_logprobs = 3
    gateway.scheduler.lose_streams()
    await gateway.scheduler.until(lambda: len(gateway.scheduler.opens) == 2)
    await gateway.until_ready()
    for field in ("logprobs", "prompt_logprobs"):
        body = {"model": MODEL, "prompt": "ab", field: 4}
        answer = await gateway.http.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text


async def test_chat_has_logprobs_in_a_stream_and_the_prompts_in_a_whole_answer(
    gateway: Gateway,
) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 2,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 1,
        "return_tokens_as_token_ids": True,
    }
    whole = (
        await gateway.http.post("/v1/chat/completions", json=body | {"prompt_logprobs": 0})
    ).json()
    content = whole["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["token_id:62", "token_id:116"]
    assert [entry["top_logprobs"][0]["bytes"] for entry in content] == [[62], [116]]
    assert whole["prompt_logprobs"][1] == {
        str(ord("u")): {"logprob": -0.5, "rank": 1, "decoded_token": "u"}
    }
    answer = await gateway.http.post("/v1/chat/completions", json=body | {"stream": True})
    events = events_of(answer.text)
    streamed = [choice["logprobs"] for event in events for choice in event["choices"]]
    assert [entry for each in streamed if each for entry in each["content"]] == content


async def test_completions_have_the_named_tokens_in_place_of_the_likeliest(
    gateway: Gateway,
) -> None:
    named = [ord("x"), ord("b")]
    # Their number need not be that of logprobs, which the echoed prompt still goes by.
    fields = {"logprobs": 1, "logprob_token_ids": named, "max_tokens": 2}
    (choice,) = (await complete(gateway, **fields, prompt=encode("ab"), echo=True))["choices"]
    assert choice["logprobs"]["top_logprobs"] == [
        None,
        {"b": -0.5},
        {"b": -0.5, "x": -0.5},
        {"a": -0.5, "x": -0.5, "b": -1.5},
    ]
    params = gateway.scheduler.adds[0].sampling_params
    assert list(params.logprob_token_ids) == named
    assert params.prompt_logprobs == 1 and not params.HasField("logprobs")


async def test_chat_has_the_named_tokens_whole_and_streamed(gateway: Gateway) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 2,
        "temperature": 0,
        "logprobs": True,
        "logprob_token_ids": list(b"zyx"),
    }
    whole = (await gateway.http.post("/v1/chat/completions", json=body)).json()
    content = whole["choices"][0]["logprobs"]["content"]
    tops = [[top["token"] for top in each["top_logprobs"]] for each in content]
    assert tops == [["z", "y", "x"]] * 2
    answer = await gateway.http.post("/v1/chat/completions", json=body | {"stream": True})
    choices = [choice for event in events_of(answer.text) for choice in event["choices"]]
    streamed = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert [entry for each in streamed for entry in each["content"]] == content


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"logprob_token_ids": []}, "logprob_token_ids"),
        ({"logprob_token_ids": [1, 1]}, "logprob_token_ids"),
        ({"logprob_token_ids": list(range(129))}, "logprob_token_ids"),
        ({"logprob_token_ids": [-1]}, "logprob_token_ids"),
        ({"logprob_token_ids": [VOCAB_SIZE]}, "logprob_token_ids"),
        ({"logprob_token_ids": [1], "echo": True, "max_tokens": 0}, "logprob_token_ids"),
        ({"logprob_token_ids": [1], "logprobs": -1}, "logprobs"),
        ({"logprob_token_ids": [1], "logprobs": None}, "logprob_token_ids"),
    ],
    ids=str,
)
async def test_named_tokens_that_cannot_be_reported_are_refused(
    gateway: Gateway, fields: dict[str, Any], field: str
) -> None:
    body = {"model": MODEL, "prompt": "ab", "logprobs": 1} | fields
    answer = await gateway.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
    assert gateway.scheduler.adds == []


async def test_the_bytes_come_again_after_a_tokenizer_was_lost(gateway: Gateway) -> None:
    gateway.scheduler.go_on.clear()
    gateway.scheduler.frames_left = 3
    body = {"model": MODEL, "prompt": encode("abc"), "max_tokens": 6, "echo": True, "logprobs": 1}
    body |= {"stream": True, "temperature": 0}
    choices: list[dict[str, Any]] = []
    async with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        gateway.scheduler.go_on.set()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                choices += json.loads(line.removeprefix("data: "))["choices"]
            if len(choices) == 3 and gateway.tokenizer.num_streams == 1:
                gateway.tokenizer.lose_streams()
                gateway.scheduler.lose_streams()
                gateway.scheduler.frames_left = None
    assert "".join(choice["text"] for choice in choices) == "abccbacba"
    tokens = [token for choice in choices for token in tokens_of(choice)]
    assert "".join(tokens) == "abccbacba"
