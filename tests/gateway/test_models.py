"""Several models: each request goes to a replica that serves its model, and all are listed."""

from __future__ import annotations

import asyncio

from tests.fakes.fake_scheduler import FakeScheduler
from tests.gateway.conftest import Gateway, GatewayFactory

TIMEOUT_S = 20.0


async def until_all_ready(gateway: Gateway, number: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while len(gateway.server.service.engines.ready) < number:
            await gateway.server.readiness.changed.wait()
            await asyncio.sleep(0)


async def test_two_models_on_two_replicas(run_gateway: GatewayFactory) -> None:
    async with FakeScheduler(models=("one",)) as one, FakeScheduler(models=("two",)) as two:
        targets = (one.target, two.target)
        async with run_gateway(schedulers=targets, wait=False) as gateway:
            await until_all_ready(gateway, 2)
            listed = (await gateway.http.get("/v1/models")).json()["data"]
            assert {model["id"] for model in listed} == {"one", "two"}
            for name, scheduler, other in (("two", two, one), ("one", one, two)):
                before = len(other.adds)
                body = {"model": name, "prompt": "abc", "max_tokens": 3}
                answer = await gateway.http.post("/v1/completions", json=body)
                assert (answer.status_code, answer.json()["model"]) == (200, name)
                assert (len(scheduler.adds), len(other.adds)) == (1, before)
            body["model"] = "three"
            answer = await gateway.http.post("/v1/completions", json=body)
            assert answer.status_code == 404
            assert "three" in answer.json()["error"]["message"]


async def test_figures_of_replicas_are_among_the_metrics(gateway: Gateway) -> None:
    body = {"prompt": "abc", "max_tokens": 3}
    usage = (await gateway.http.post("/v1/completions", json=body)).json()["usage"]
    text = (await gateway.http.get("/metrics")).text
    label = f'{{engine="0",scheduler="{gateway.scheduler.target}"}}'
    assert f"pagewire:gateway_scheduler_up{label} 1.0" in text
    assert f"pagewire:gateway_circuit_open{label} 0.0" in text
    assert f"pagewire:gateway_circuit_opens_total{label} 0.0" in text
    num_tokens = usage["prompt_tokens"]
    assert f"pagewire:gateway_routed_prompt_tokens_total {num_tokens}.0" in text
