"""Prometheus figures of the replicas and of the choice among them, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.engine_pool import EnginePool

_LABELS = ("scheduler",)


class ReplicaCollector(Collector):
    """Reads one pool. A replica that leaves takes its figures along."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "pagewire_gateway_scheduler_up", "1: takes new requests.", labels=_LABELS
        )
        requests = GaugeMetricFamily(
            "pagewire_gateway_scheduler_requests",
            "Requests that it has of this gateway.",
            labels=_LABELS,
        )
        is_open = GaugeMetricFamily(
            "pagewire_gateway_circuit_open",
            "1: it failed too often and gets requests only on trial.",
            labels=_LABELS,
        )
        opens = CounterMetricFamily(
            "pagewire_gateway_circuit_opens", "Times that it was left alone.", labels=_LABELS
        )
        known = GaugeMetricFamily(
            "pagewire_gateway_known_cached_blocks",
            "Blocks of its prefix cache that this gateway knows.",
            labels=_LABELS,
        )
        for replica in self._pool.replicas:
            label = (replica.target,)
            up.add_metric(label, replica.takes_requests)
            requests.add_metric(label, replica.client.num_requests)
            is_open.add_metric(label, not replica.breaker.is_closed)
            opens.add_metric(label, replica.breaker.num_opens)
            known.add_metric(label, len(replica.index) if replica.index.is_current else 0)
        yield from (up, requests, is_open, opens, known)
        counters = self._pool.router.counters
        yield CounterMetricFamily(
            "pagewire_gateway_routed_prompt_tokens",
            "Prompt tokens that were sent to a replica.",
            value=counters.num_prompt_tokens,
        )
        yield CounterMetricFamily(
            "pagewire_gateway_routed_matched_tokens",
            "Of those, known to be cached at the replica that was chosen.",
            value=counters.num_matched_tokens,
        )
