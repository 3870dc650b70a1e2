"""Parameters that completions and chat share, over real HTTP: what reaches engine and tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.fake_scheduler import MAX_MODEL_LEN, MODEL, FakeScheduler
from tests.fakes.fake_tokenizer import BOS, decode, encode
from tests.gateway.conftest import Gateway, GatewayFactory
from tests.gateway.http.events import events_of

MESSAGES = [{"role": "user", "content": "Hi"}]
PATHS = ("/v1/completions", "/v1/chat/completions")


def body(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": "abcdef"} if path == PATHS[0] else {"messages": MESSAGES}
    return {"model": MODEL, "max_tokens": 3, "temperature": 0} | prompt | fields


async def post(gateway: Gateway, path: str, **fields: Any) -> dict[str, Any]:
    answer = await gateway.http.post(path, json=body(path, **fields))
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def refused(gateway: Gateway, path: str, **fields: Any) -> str:
    """The name of the field at fault."""
    answer = await gateway.http.post(path, json=body(path, **fields))
    assert answer.status_code == 400, answer.text
    param: str = answer.json()["error"]["param"]
    return param


@pytest.mark.parametrize("path", PATHS)
async def test_every_sampling_parameter_reaches_the_engine(gateway: Gateway, path: str) -> None:
    plain = {
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.25,
        "presence_penalty": 1.5,
        "frequency_penalty": -1.5,
        "repetition_penalty": 1.5,
        "seed": 11,
        "min_tokens": 2,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "stop": ["x", "y"],
        "stop_token_ids": [5, 6],
        "allowed_token_ids": [65, 66],
        "prompt_logprobs": 1,
    }
    await post(gateway, path, **plain, logit_bias={"65": 1.5}, bad_words=["no"])
    params = gateway.scheduler.adds[0].sampling_params
    for name, value in plain.items():
        found = getattr(params, name)
        assert (list(found) if isinstance(value, list) else found) == value, name
    assert dict(zip(params.logit_bias_token_ids, params.logit_bias_values, strict=True)) == {
        65: 1.5
    }
    assert list(params.bad_word_lengths) == [2, 3]
    assert decode(params.bad_word_token_ids) == "no no"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"truncate_prompt_tokens": 3}, [BOS, *encode("ef")]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [BOS, *encode("ab")]),
        ({"truncate_prompt_tokens": 3, "prompt": encode("abcdef")}, encode("def")),
        ({"truncate_prompt_tokens": 99}, [BOS, *encode("abcdef")]),
        ({"truncate_prompt_tokens": 2, "add_special_tokens": False}, encode("ef")),
    ],
)
async def test_prompts_are_truncated(
    gateway: Gateway, fields: dict[str, Any], expected: list[int]
) -> None:
    answer = await post(gateway, PATHS[0], **fields, return_token_ids=True)
    assert list(gateway.scheduler.adds[0].prompt_token_ids) == expected
    assert answer["usage"]["prompt_tokens"] == len(expected)
    assert answer["choices"][0]["prompt_token_ids"] == expected


@pytest.mark.parametrize("prompt", ["x" * 2 * MAX_MODEL_LEN, encode("x" * 2 * MAX_MODEL_LEN)])
async def test_as_many_tokens_as_fit_are_kept(gateway: Gateway, prompt: Any) -> None:
    fields = {"prompt": prompt, "truncate_prompt_tokens": -1}
    answer = await post(gateway, PATHS[0], **fields)
    assert answer["usage"]["total_tokens"] == MAX_MODEL_LEN
    answer = await post(gateway, PATHS[0], **fields, max_tokens=None)
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("truncate_prompt_tokens", MAX_MODEL_LEN + 1),
        ("truncation_side", "middle"),
        ("bad_words", [""]),
        ("bad_words", ["x" * 65]),
        ("request_id", "a\nb"),
        ("request_id", "x" * 129),
        ("cache_salt", ""),
        ("prompt_logprobs", 21),
        ("min_tokens", 4),
        ("prediction", {"type": "content", "content": "x"}),
        ("suffix", "x"),
        ("audio", {"voice": "x"}),
        ("modalities", ["audio"]),
        ("web_search_options", {}),
        ("logprob_token_ids", [1]),  # without logprobs
        ("use_beam_search", True),
        ("prompt_embeds", "x"),
        ("stream_options", {"include_usage": True}),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    gateway: Gateway, path: str, name: str, value: Any
) -> None:
    assert await refused(gateway, path, **{name: value}) == name
    assert gateway.scheduler.adds == []


@pytest.mark.parametrize("path", PATHS)
async def test_hints_and_unknown_names_change_nothing(gateway: Gateway, path: str) -> None:
    hints = {
        "user": "me",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "x",
        "verbosity": "low",
        "stream_interval": 4,
        "spaces_between_special_tokens": False,
        "of_the_future": [1],
    }
    plain, hinted = await post(gateway, path), await post(gateway, path, **hints)
    assert hinted["choices"] == plain["choices"]


@pytest.mark.parametrize("path", PATHS)
async def test_the_answers_id_is_the_headers_then_the_bodys(gateway: Gateway, path: str) -> None:
    answer = await post(gateway, path, request_id="mine")
    assert answer["id"].endswith("-mine")
    answer = (
        await gateway.http.post(
            path, json=body(path, request_id="mine"), headers={"X-Request-Id": "header"}
        )
    ).json()
    assert answer["id"].endswith("-header")
    assert gateway.scheduler.adds[1].request_id.startswith("header-")


@pytest.mark.parametrize("path", PATHS)
async def test_all_chunks_have_one_head(gateway: Gateway, path: str) -> None:
    answer = await gateway.http.post(path, json=body(path, stream=True, max_tokens=9))
    events = events_of(answer.text)
    names = ("id", "object", "created", "model", "system_fingerprint")
    assert len({tuple(event[name] for name in names) for event in events}) == 1
    assert events[0]["system_fingerprint"].startswith("fp_")


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 400),
        ("application/x-www-form-urlencoded", 400),
    ],
)
async def test_a_body_of_another_type_than_json_is_refused(
    gateway: Gateway, content_type: str, status: int
) -> None:
    answer = await gateway.http.post(
        PATHS[0], content=json.dumps(body(PATHS[0])), headers={"content-type": content_type}
    )
    assert answer.status_code == status, answer.text
    if status == 400:
        assert "Content-Type" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("config", "temperature"), [("auto", 0.25), ("vllm", 1.0)])
async def test_the_models_recommendations_can_be_left_aside(
    run_gateway: GatewayFactory, config: str, temperature: float
) -> None:
    scheduler = FakeScheduler()
    scheduler.info.model_info.default_sampling_params.temperature = 0.25
    async with run_gateway(scheduler, generation_config=config) as gateway:
        await post(gateway, PATHS[0], temperature=None)
        await post(gateway, PATHS[0], temperature=0.5)
    found = [add.sampling_params.temperature for add in scheduler.adds]
    assert found == [temperature, 0.5]


async def test_what_a_chat_template_gets_beside_the_conversation(gateway: Gateway) -> None:
    await post(
        gateway,
        PATHS[1],
        chat_template="{{ messages }}",
        add_special_tokens=True,
        documents=[{"text": "x"}],
        chat_template_kwargs={"style": "short"},
    )
    rendered = gateway.tokenizer.requests[0]
    assert rendered.chat_template == "{{ messages }}"
    assert rendered.add_special_tokens
    arguments = json.loads(rendered.template_arguments_json)
    assert arguments == {"style": "short", "documents": [{"text": "x"}]}
    assert await refused(gateway, PATHS[1], documents=["x"]) == "documents[0]"


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_echoes_the_assistants_words_that_it_goes_on_with(
    gateway: Gateway, stream: bool
) -> None:
    fields: dict[str, Any] = {
        "messages": [*MESSAGES, {"role": "assistant", "content": "I am"}],
        "continue_final_message": True,
        "echo": True,
    }
    if not stream:
        message = (await post(gateway, PATHS[1], **fields))["choices"][0]["message"]
        assert message["content"] == "I amma "
        return
    answer = await gateway.http.post(PATHS[1], json=body(PATHS[1], **fields, stream=True))
    events = events_of(answer.text)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "I amma "
