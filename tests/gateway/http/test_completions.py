"""`/v1/completions` over real HTTP, with fakes behind the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.fake_scheduler import MAX_MODEL_LEN, MODEL, NUM_CACHED_TOKENS
from tests.fakes.fake_tokenizer import BOS, EOS, VOCAB_SIZE, encode
from tests.gateway.conftest import Gateway


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0} | fields


async def post(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    answer = await gateway.http.post("/v1/completions", json=completion(**fields))
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def events(gateway: Gateway, **fields: Any) -> list[Any]:
    body = completion(stream=True, **fields)
    async with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in answer.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_a_completion_has_openais_shape(gateway: Gateway) -> None:
    value = await post(gateway)
    assert value["id"].startswith("cmpl-")
    assert value["object"] == "text_completion"
    assert value["model"] == MODEL
    assert value["choices"] == [
        {
            "index": 0,
            "text": "cbac",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert value["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": NUM_CACHED_TOKENS},
    }


async def test_a_stream_has_the_text_of_the_whole_answer_under_one_id(gateway: Gateway) -> None:
    chunks = await events(gateway, max_tokens=9)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "cbacbacba"
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] == "length" and not any(reasons[:-1])
    assert all("usage" not in chunk for chunk in chunks)


async def test_include_usage_adds_a_chunk_with_usage_and_no_choices(gateway: Gateway) -> None:
    chunks = await events(gateway, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_continuous_usage_stands_in_every_chunk(gateway: Gateway) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await events(gateway, stream_options=options)
    assert all(chunk["usage"]["prompt_tokens"] == 4 for chunk in chunks)


async def test_max_tokens_is_16_when_not_given(gateway: Gateway) -> None:
    value = await post(gateway, max_tokens=None)
    assert value["usage"]["completion_tokens"] == 16


async def test_the_default_max_tokens_is_clamped_to_the_context(gateway: Gateway) -> None:
    value = await post(gateway, prompt=[65] * (MAX_MODEL_LEN - 3), max_tokens=None)
    assert value["usage"]["completion_tokens"] == 3


async def test_token_ids_are_a_prompt(gateway: Gateway) -> None:
    value = await post(gateway, prompt=encode("xyz"))
    assert value["choices"][0]["text"] == "zyxz"
    assert value["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("prompts", [["ab", "cd"], [encode("ab"), encode("cd")]])
async def test_several_prompts_give_choices_in_their_order(
    gateway: Gateway, prompts: list[Any]
) -> None:
    value = await post(gateway, prompt=prompts, max_tokens=2)
    assert [(c["index"], c["text"]) for c in value["choices"]] == [(0, "ba"), (1, "dc")]


async def test_n_outputs_share_a_prompt_and_have_seeds_one_apart(gateway: Gateway) -> None:
    value = await post(gateway, n=3, temperature=1, seed=7)
    assert [choice["index"] for choice in value["choices"]] == [0, 1, 2]
    assert [add.sampling_params.seed for add in gateway.scheduler.adds] == [7, 8, 9]
    assert value["usage"]["prompt_tokens"] == 4
    assert value["usage"]["completion_tokens"] == 12


async def test_a_request_without_a_seed_gets_a_random_one(gateway: Gateway) -> None:
    await post(gateway, temperature=1)
    await post(gateway, temperature=1)
    first, second = (add.sampling_params for add in gateway.scheduler.adds)
    assert first.HasField("seed") and second.HasField("seed")
    assert first.seed != second.seed


async def test_the_text_of_an_end_of_sequence_token_is_left_out(gateway: Gateway) -> None:
    value = await post(gateway, prompt=[*encode("ab"), EOS], max_tokens=50)
    choice = value["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ba", "stop")
    assert choice["stop_reason"] is None
    assert value["usage"]["completion_tokens"] == 3


async def test_a_stop_token_is_named_and_its_text_left_out(gateway: Gateway) -> None:
    value = await post(gateway, prompt="abc", stop_token_ids=[ord("a")], max_tokens=50)
    choice = value["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("cb", "stop")
    assert choice["stop_reason"] == ord("a")


async def test_a_stop_string_ends_the_output_at_the_token_that_completed_it(
    gateway: Gateway,
) -> None:
    value = await post(gateway, prompt="abcde", stop=["cb"], max_tokens=200)
    choice = value["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ed", "stop")
    assert choice["stop_reason"] == "cb"
    assert value["usage"]["completion_tokens"] == 4


async def test_a_stop_string_aborts_the_request_with_that_reason(gateway: Gateway) -> None:
    await post(gateway, prompt="abcde", stop="cb", max_tokens=500)
    await gateway.scheduler.until(lambda: gateway.scheduler.aborts)
    assert [reason for _, reason in gateway.scheduler.aborts] == [1]


async def test_a_stop_string_is_kept_when_asked_for(gateway: Gateway) -> None:
    value = await post(
        gateway, prompt="abcde", stop=["cb"], include_stop_str_in_output=True, max_tokens=50
    )
    assert value["choices"][0]["text"] == "edcb"


async def test_token_ids_come_back_when_asked_for(gateway: Gateway) -> None:
    value = await post(gateway, return_token_ids=True)
    assert value["choices"][0]["token_ids"] == encode("cbac")
    chunks = await events(gateway, return_token_ids=True)
    ids = [i for chunk in chunks for i in chunk["choices"][0]["token_ids"]]
    assert ids == encode("cbac")


async def test_an_unfinished_character_is_held_back_not_torn(gateway: Gateway) -> None:
    chunks = await events(gateway, prompt=list(reversed("héé".encode())), max_tokens=5)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "héé"


async def test_text_prompts_get_the_tokens_that_the_model_wants_first(gateway: Gateway) -> None:
    await post(gateway)
    await post(gateway, add_special_tokens=False)
    first, second = (list(add.prompt_token_ids) for add in gateway.scheduler.adds)
    assert first == [BOS, *second]


BAD = [
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": {"a": 1}}),
    ("prompt", {"prompt": [1, "a"]}),
    ("prompt", {"prompt": [1.5]}),
    ("prompt", {"prompt": [VOCAB_SIZE]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [65] * MAX_MODEL_LEN}),
    ("prompt", {"prompt": "\ud800"}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": MAX_MODEL_LEN}),
    ("max_tokens", {"max_tokens": "4"}),
    ("max_tokens", {"max_tokens": True}),
    ("max_tokens", {"max_tokens": 2.5}),
    ("min_tokens", {"min_tokens": 9}),
    ("temperature", {"temperature": 3}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 0}),
    ("top_k", {"top_k": -2}),
    ("top_k", {"top_k": 2**31}),
    ("top_k", {"top_k": 2**40, "temperature": 1}),
    ("min_tokens", {"min_tokens": 2**40, "max_tokens": None}),
    ("max_tokens", {"max_tokens": 2**40}),
    ("priority", {"priority": 2**31}),
    ("stop_token_ids", {"stop_token_ids": [2**40]}),
    ("allowed_token_ids", {"allowed_token_ids": [-1]}),
    ("logit_bias", {"logit_bias": {str(2**40): 1}}),
    ("stop", {"stop": "\ud800"}),
    ("cache_salt", {"cache_salt": "\ud800"}),
    ("cache_salt", {"cache_salt": "x" * 1025}),
    ("n", {"n": 2**40, "temperature": 1}),
    ("n", {"n": 0}),
    ("n", {"n": 2}),
    ("n", {"n": 1000, "temperature": 1}),
    ("stop", {"stop": [""]}),
    ("stop", {"stop": ["a"] * 5}),
    ("stop[1]", {"stop": ["a", 1]}),
    ("stop_token_ids", {"stop_token_ids": [VOCAB_SIZE]}),
    ("seed", {"seed": "x"}),
    ("seed", {"seed": 2**64}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("model", {"model": 7}),
    ("suffix", {"suffix": "x"}),
    ("best_of", {"best_of": 2}),
    ("echo", {"echo": 1}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": -1}),
    ("logprobs", {"logprobs": True}),
    ("logit_bias.x", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {str(VOCAB_SIZE): 1}}),
    ("cache_salt", {"cache_salt": ""}),
]


@pytest.mark.parametrize(("param", "fields"), BAD)
async def test_bad_fields_are_400_and_named(
    gateway: Gateway, param: str, fields: dict[str, Any]
) -> None:
    body = json.dumps(completion(**fields))
    answer = await gateway.http.post("/v1/completions", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), answer.text
    assert error["param"] is not None and error["param"].startswith(param)
    assert gateway.scheduler.adds == []


async def test_values_that_change_nothing_and_hints_are_accepted(gateway: Gateway) -> None:
    await post(
        gateway, suffix="", best_of=1, echo=False, logprobs=None, user="me", store=True, new_name=1
    )
    await post(gateway, tools=[], functions=[], tool_choice="auto", function_call="auto")


async def test_too_many_prompts_are_refused_before_they_are_read(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/completions", json=completion(prompt=["a"] * 999 + [{}]))
    error = answer.json()["error"]
    assert (error["code"], answer.headers["x-error-reason"]) == (400, "TOO_MANY_OUTPUTS"), error


@pytest.mark.parametrize("num_chars", [10, 300_000])
async def test_a_body_of_any_size_is_read_alike(gateway: Gateway, num_chars: int) -> None:
    answer = await gateway.http.post("/v1/completions", json=completion(user="é" * num_chars))
    assert answer.status_code == 200
    bad = await gateway.http.post("/v1/completions", json=completion(user="é" * num_chars, n="x"))
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "n")


async def test_logit_bias_reaches_the_engine(gateway: Gateway) -> None:
    await post(gateway, logit_bias={"65": -100, "66": 1.5})
    params = gateway.scheduler.adds[0].sampling_params
    assert list(params.logit_bias_token_ids) == [65, 66]
    assert list(params.logit_bias_values) == [-100.0, 1.5]
