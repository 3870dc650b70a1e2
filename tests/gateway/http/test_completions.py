"""`/v1/completions` over real HTTP, with fakes behind the gateway."""

from __future__ import annotations

from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import Gateway


async def test_a_completion_has_openais_shape(gateway: Gateway) -> None:
    body = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0}
    answer = await gateway.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    value = answer.json()
    assert value["id"].startswith("cmpl-")
    assert value["object"] == "text_completion"
    assert value["choices"][0]["text"] == "cbac"
    assert value["choices"][0]["finish_reason"] == "length"
    assert value["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
