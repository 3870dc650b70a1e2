"""Metrics over HTTP from their own thread."""

import asyncio
import urllib.request

import pytest
from prometheus_client import Counter

from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.metrics import MetricsServer, RpcMetrics, new_registry
from pagewire.kit.server import ServerConfig, ServiceServer

# What Prometheus sends.
ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"


def fetch(port: int, accept: str = "*/*") -> str:
    url = f"http://127.0.0.1:{port}/metrics"
    request = urllib.request.Request(url, headers={"accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.read().decode()


async def test_a_registry_is_served_with_the_figures_of_the_process():
    registry = new_registry()
    Counter("pagewire:things", "Things.", registry=registry).inc(3)
    server = MetricsServer.start(registry, "127.0.0.1", 0)
    try:
        for accept in ("*/*", ACCEPT):
            text = await asyncio.to_thread(fetch, server.port, accept)
            assert "pagewire:things_total 3.0" in text
            assert "process_resident_memory_bytes" in text
    finally:
        await server.stop()


async def test_a_port_in_use_is_refused_with_a_hint():
    server = MetricsServer.start(new_registry(), "127.0.0.1", 0)
    try:
        with pytest.raises(FailedPreconditionError, match="change --metrics-port"):
            MetricsServer.start(new_registry(), "127.0.0.1", server.port)
    finally:
        await server.stop()


async def test_port_zero_of_a_service_means_off():
    server = ServiceServer(ServerConfig(metrics_port=0), "x", [])
    await server.start()
    assert server.metrics_port is None
    await server.stop(0)


async def test_a_service_serves_its_registry_until_it_stops():
    probe = MetricsServer.start(new_registry(), "127.0.0.1", 0)
    port = probe.port
    await probe.stop()
    server = ServiceServer(ServerConfig(metrics_port=port), "x", [])
    await server.start()
    assert "pagewire:rpc_in_flight" in await asyncio.to_thread(fetch, port)
    await server.stop(0)
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(fetch, port)


def test_calls_in_flight_are_a_gauge():
    registry = new_registry()
    metrics = RpcMetrics(registry)
    with metrics.in_flight("/a/b"):
        assert registry.get_sample_value("pagewire:rpc_in_flight", {"method": "/a/b"}) == 1
    assert registry.get_sample_value("pagewire:rpc_in_flight", {"method": "/a/b"}) == 0
