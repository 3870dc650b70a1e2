"""`/tokenize`, `/detokenize` and `/load`, with fakes behind the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.http.openapi.document import document
from tests.fakes.fake_scheduler import MAX_MODEL_LEN, MODEL
from tests.fakes.fake_tokenizer import BOS, VOCAB_SIZE, FakeTokenizer, encode
from tests.gateway.conftest import Gateway, GatewayFactory
from tests.gateway.http.openapi.test_document import check_answer


async def post(gateway: Gateway, path: str, **body: Any) -> Any:
    answer = await gateway.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_text_becomes_token_ids_and_back(gateway: Gateway) -> None:
    tokens = await post(gateway, "/tokenize", model=MODEL, prompt="aé", return_token_strs=True)
    assert tokens == {
        "count": 4,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": [BOS, *encode("aé")],
        "token_strs": ["", "a", "\ufffd", "\ufffd"],
    }
    assert await post(gateway, "/detokenize", tokens=tokens["tokens"]) == {"prompt": "aé"}


async def test_special_tokens_can_be_left_out(gateway: Gateway) -> None:
    tokens = await post(gateway, "/tokenize", prompt="a", add_special_tokens=False)
    assert (tokens["tokens"], tokens["token_strs"]) == (encode("a"), None)


async def test_a_conversation_goes_through_the_template_with_its_tools(gateway: Gateway) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    tokens = await post(
        gateway,
        "/tokenize",
        messages=[{"role": "user", "content": "Hi"}],
        tools=[tool],
        chat_template_kwargs={"x": 1},
    )
    assert tokens["tokens"] == encode("<user>Hi\n<assistant>")
    rendered = gateway.tokenizer.requests[-1]
    assert json.loads(rendered.tools_json) == [tool]
    assert json.loads(rendered.template_arguments_json) == {"x": 1}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 3}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user"}]}, 400, "messages"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "tools": []}, 400, "tools"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, 400, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {}}, 400, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "a", "model": "none"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "none"}, 404, "model"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    gateway: Gateway, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = await gateway.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_the_load_is_the_number_of_requests_in_work(gateway: Gateway) -> None:
    assert (await gateway.http.get("/load")).json() == {"server_load": 0}
    gateway.scheduler.frames_left = 1
    body = {"prompt": "a", "max_tokens": 50, "stream": True}
    async with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        assert (await gateway.http.get("/load")).json() == {"server_load": 1}
    await gateway.server.service.wait_idle()
    assert (await gateway.http.get("/load")).json() == {"server_load": 0}


async def test_the_tokenizers_configuration_is_shown_where_that_is_on(
    run_gateway: GatewayFactory,
) -> None:
    tokenizer = FakeTokenizer()
    async with run_gateway(tokenizer=tokenizer, enable_tokenizer_info_endpoint=True) as gateway:
        for template in ("{{ 1 }}", "{{ 2 }}"):
            tokenizer.files["chat_template.jinja"] = template.encode()
            answer = await gateway.http.get("/tokenizer_info")
            assert answer.status_code == 200, answer.text
            # What was read of one tokenizer stays.
            assert answer.json() == {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "chat_template": "{{ 1 }}",
            }
        served = (await gateway.http.get("/openapi.json")).json()
        assert served == json.loads(json.dumps(document(tokenizer_info=True)))
        check_answer(answer, "/tokenizer_info", "get", served)


async def test_without_its_flag_tokenizer_info_is_no_route(gateway: Gateway) -> None:
    assert (await gateway.http.get("/tokenizer_info")).status_code == 404


async def test_files_that_are_too_large_are_not_read(run_gateway: GatewayFactory) -> None:
    tokenizer = FakeTokenizer()
    tokenizer.files["tokenizer_config.json"] = b" " * (9 * 1024 * 1024)
    async with run_gateway(tokenizer=tokenizer, enable_tokenizer_info_endpoint=True) as gateway:
        answer = await gateway.http.get("/tokenizer_info")
    assert answer.status_code == 500
