"""A real Prometheus scrapes the four services, and finds what dashboards and alerts ask for."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from pagewire.kit.metric_families import PREFIX
from pagewire.kit.metrics import MetricsServer
from tests.deploy.monitoring import (
    JOBS,
    PROMETHEUS,
    adapter_queries,
    dashboard_queries,
    rules,
    selectors,
    tool,
)
from tests.integration.services import (
    WAIT_S,
    Services,
    running_stack,
    samples_of,
    total_of,
)

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

NUM_REQUESTS, PROMPT_LEN, OUTPUT_LEN = 3, 10, 7


async def run_workload(services: Services) -> None:
    for number in range(NUM_REQUESTS):
        await services.complete([1000 + number] * PROMPT_LEN, OUTPUT_LEN)


async def test_every_metric_of_dashboards_and_alerts_exists() -> None:
    async with running_stack() as services:
        await run_workload(services)
        shown = {
            job: {key.partition("[")[0] for each in registries for key in samples_of(each)}
            for job, registries in services.registries.items()
        }
    alerts = [rule["expr"] for rule in rules()]
    for query in [*dashboard_queries(), *adapter_queries().values(), *alerts]:
        for name, jobs in selectors(query):
            if name == "up":
                continue  # Prometheus's own
            assert any(name in shown[job] for job in jobs), (name, jobs)


async def test_the_table_in_docs_has_what_is_shown_and_nothing_else() -> None:
    async with running_stack() as services:
        await run_workload(services)
        shown = {
            f"{family.name}_total" if family.type == "counter" else family.name
            for registries in services.registries.values()
            for registry in registries
            for family in registry.collect()
        }
    ours = {name for name in shown if name.startswith((PREFIX, "http_"))}
    assert documented() == ours


def documented() -> set[str]:
    """The metrics that docs/metrics.md has rows for."""
    found = set[str]()
    for section in DOCS.read_text().split("\n## ")[1:]:
        for line in section.splitlines():
            if line.startswith("| `"):
                for name in re.findall(r"`([a-z0-9_:]+)(?:\{[^`]*)?`", line.split("|")[1]):
                    is_whole = name.startswith((PREFIX, "http_"))
                    found.add(name if is_whole else PREFIX + name)
    return found - {PREFIX}


async def test_a_real_prometheus_finds_every_target_and_the_exact_figures(tmp_path: Path) -> None:
    async with (
        running_stack(num_replicas=2) as services,
        exposed(services) as targets,
        prometheus(tmp_path, targets) as client,
    ):
        await run_workload(services)
        await until(client, 'sum(up{job=~"pagewire-.+"})', sum(map(len, targets.values())))
        generated = NUM_REQUESTS * OUTPUT_LEN
        gateway = 'job="pagewire-gateway"'
        exact = {
            f"sum(pagewire:generation_tokens_total{{{gateway}}})": generated,
            f"sum(pagewire:request_prompt_tokens_sum{{{gateway}}})": NUM_REQUESTS * PROMPT_LEN,
            f"sum(pagewire:inter_token_latency_seconds_count{{{gateway}}})": NUM_REQUESTS
            * (OUTPUT_LEN - 1),
            f"sum(pagewire:iteration_tokens_total_count{{{gateway}}})": generated,
            'sum(pagewire:iteration_tokens_total_count{job="pagewire-scheduler"})': generated,
            'sum(pagewire:worker_sampled_tokens_total{job="pagewire-worker"})': generated,
            'sum(pagewire:tokenizer_detokenized_tokens_total{job="pagewire-tokenizer"})': generated,
        }
        for query, total in exact.items():
            await until(client, query, total)
        loaded = (await client.get("/api/v1/rules")).json()["data"]["groups"]
        assert [rule["name"] for group in loaded for rule in group["rules"]] == [
            rule["alert"] for rule in rules()
        ]
        assert {
            rule["lastError"] for g in loaded for rule in g["rules"] if "lastError" in rule
        } <= {""}
        samples = await services.exposition()
        assert total_of(samples, "pagewire:generation_tokens_total") == generated


@asynccontextmanager
async def exposed(services: Services) -> AsyncIterator[dict[str, list[str]]]:
    """Serve each service's metrics on a port of its own; gives the targets by service."""
    servers = {
        job: [MetricsServer.start(registry, "127.0.0.1", 0) for registry in registries]
        for job, registries in services.registries.items()
    }
    try:
        yield {job: [f"127.0.0.1:{s.port}" for s in each] for job, each in servers.items()}
    finally:
        await asyncio.gather(*(server.stop() for each in servers.values() for server in each))


@asynccontextmanager
async def prometheus(
    folder: Path, targets: dict[str, list[str]]
) -> AsyncIterator[httpx.AsyncClient]:
    """Run Prometheus with our configuration on these targets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(tool("prometheus"), f"--config.file={configuration(folder, targets)}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with (folder / "log.txt").open("w") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            async with asyncio.timeout(WAIT_S):
                while not await is_ready(client):
                    assert process.returncode is None, (folder / "log.txt").read_text()
                    await asyncio.sleep(0.1)  # asked again: it does not tell when it is ready
            yield client
    finally:
        process.terminate()
        await process.wait()


def configuration(folder: Path, targets: dict[str, list[str]]) -> Path:
    """Write deploy/prometheus/prometheus.yml with the test's targets, asked more often."""
    config: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "250ms", "evaluation_interval": "250ms"}
    config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
    assert [job["job_name"] for job in config["scrape_configs"]] == [f"pagewire-{j}" for j in JOBS]
    for job, name in zip(config["scrape_configs"], JOBS, strict=True):
        job["static_configs"] = [{"targets": targets[name]}]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


async def is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False


async def until(client: httpx.AsyncClient, query: str, total: float) -> None:
    """Wait until a query gives a figure, which it must not pass."""
    now, deadline_s = -1.0, time.monotonic() + WAIT_S
    while now != total:
        answer = (await client.get("/api/v1/query", params={"query": query})).json()
        result = answer["data"]["result"]
        now = float(result[0]["value"][1]) if result else 0.0
        assert now <= total and time.monotonic() < deadline_s, (query, now, total)
        await asyncio.sleep(0.1)  # asked again: scrapes come now and then
