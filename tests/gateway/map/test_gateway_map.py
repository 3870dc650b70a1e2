"""The map of a gateway between fake peers: what is there, who may see it, a slow tokenizer."""

from __future__ import annotations

import asyncio
from typing import Any

import jsonschema

from gateway.config import AccessConfig
from gateway.http.openapi.document import document
from gateway.map.live_map import WINDOW_S
from tests.fakes.fake_scheduler import MODEL
from tests.fakes.fake_tokenizer import FakeTokenizer
from tests.gateway.conftest import Gateway, GatewayFactory

MAP = "/v1/map"
BODY = {"model": MODEL, "prompt": "abc", "max_tokens": 4}
SLOW_S = 3.0
PAUSE_S = 0.2


class SlowTokenizer(FakeTokenizer):
    """Takes its time for each text."""

    async def Encode(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(SLOW_S)
        return await super().Encode(request, context)


async def see(gateway: Gateway) -> dict[str, Any]:
    """Return the map, which must be as it is documented."""
    answer = (await gateway.http.get(MAP)).json()
    schemas = document()["components"]["schemas"]
    jsonschema.validate(
        answer, {"$ref": "#/components/schemas/Map", "components": {"schemas": schemas}}
    )
    found: dict[str, Any] = answer
    return found


async def wait_for(gateway: Gateway, verdict: str) -> dict[str, Any]:
    """Return the map once it comes to the verdict; the test's own timeout bounds it."""
    answer = await see(gateway)
    while answer["diagnosis"]["verdict"] != verdict:
        await asyncio.sleep(PAUSE_S)  # leaves the loop to the gateway; a map lasts a second
        answer = await see(gateway)
    return answer


async def test_a_slow_tokenizer_is_where_requests_stand(run_gateway: GatewayFactory) -> None:
    async with run_gateway(tokenizer=SlowTokenizer()) as gateway:
        is_over = asyncio.Event()
        asking = asyncio.create_task(keep_asking(gateway, is_over))
        found = (await wait_for(gateway, "tokenizer-bound"))["diagnosis"]
        is_over.set()
        statuses = await asking
    assert found["box"] == "tokenizer-0"
    assert found["why"]["tokenizing"] >= 2
    assert "--num-threads of the tokenizer" in found["try"][0]
    assert statuses == {200}, "slow, and right"


async def keep_asking(gateway: Gateway, is_over: asyncio.Event) -> set[int]:
    """Have four requests under way; return what became of them."""
    statuses = set[int]()
    while not is_over.is_set():
        asked = [gateway.http.post("/v1/completions", json=BODY) for _ in range(4)]
        statuses |= {answer.status_code for answer in await asyncio.gather(*asked)}
    return statuses


async def test_what_is_there_is_shown(gateway: Gateway) -> None:
    answer = await wait_for(gateway, "idle")
    boxes = {box["id"]: box for box in answer["boxes"]}
    assert list(boxes) == ["gateway", "tokenizer-0", "scheduler-0"]
    assert boxes["tokenizer-0"]["address"] == gateway.tokenizer.target
    assert boxes["scheduler-0"]["address"] == gateway.scheduler.target
    assert boxes["gateway"]["process"]["rss_bytes"] > 0
    assert boxes["tokenizer-0"]["process"] is None, "the fake does not tell"
    ends = [(edge["from"], edge["to"]) for edge in answer["edges"]]
    assert ends == [
        ("clients", "gateway"),
        ("gateway", "tokenizer-0"),
        ("gateway", "scheduler-0"),
    ]


async def test_a_tokenizer_that_is_not_in_use_stands_by(run_gateway: GatewayFactory) -> None:
    async with FakeTokenizer() as first, FakeTokenizer() as second:
        targets = (first.target, second.target)
        async with run_gateway(tokenizers=targets) as gateway:
            answer = await wait_for(gateway, "idle")
            states = {box["id"]: box["state"] for box in answer["boxes"]}
            assert states["tokenizer-0"] == "ready"
            assert states["tokenizer-1"] == "standby"


async def test_peers_that_are_not_there_are_the_diagnosis(run_gateway: GatewayFactory) -> None:
    nobody = ("127.0.0.1:1",)
    async with run_gateway(schedulers=nobody, wait=False) as gateway:
        found = (await wait_for(gateway, "engine-lost"))["diagnosis"]
        assert found["box"] == "scheduler-0"
    async with run_gateway(tokenizers=nobody, wait=False) as gateway:
        found = (await wait_for(gateway, "tokenizer-lost"))["diagnosis"]
        assert found["box"] == "tokenizer-0"


async def test_a_key_is_asked_for_and_nothing_is_kept_by_others(
    run_gateway: GatewayFactory,
) -> None:
    async with run_gateway(access=AccessConfig(api_key=("a-secret-key",))) as gateway:
        assert (await gateway.http.get(MAP)).status_code == 401
        headers = {"authorization": "Bearer a-secret-key"}
        answer = await gateway.http.get(MAP, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json()["window_s"] == WINDOW_S
