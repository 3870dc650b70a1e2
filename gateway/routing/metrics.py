"""Prometheus figures of the replicas and of the choice among them, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.engine_pool import EnginePool
from gateway.routing.replica import Replica
from pagewire.engine_metrics import EngineReport, engine_metrics
from pagewire.kit.metric_families import counter, gauge

_LABELS = ("engine", "scheduler")

Value = Callable[[Replica], float]

_GAUGES: Sequence[tuple[str, str, Value]] = (
    ("gateway_scheduler_up", "1: takes new requests.", lambda each: each.takes_requests),
    (
        "gateway_scheduler_requests",
        "Requests that it has of this gateway.",
        lambda each: each.client.num_requests,
    ),
    (
        "gateway_circuit_open",
        "1: it failed too often and gets requests only on trial.",
        lambda each: not each.breaker.is_closed,
    ),
    (
        "gateway_known_cached_blocks",
        "Blocks of its prefix cache that this gateway knows.",
        lambda each: len(each.index) if each.index.is_current else 0,
    ),
)


class ReplicaCollector(Collector):
    """Reads one pool. A replica that leaves takes its figures along, those of its engine too."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        replicas = self._pool.replicas
        for name, text, value in _GAUGES:
            yield gauge(name, text, _LABELS, _rows(replicas, value))
        yield counter(
            "gateway_circuit_opens",
            "Times that it was left alone.",
            _LABELS,
            _rows(replicas, lambda each: each.breaker.num_opens),
        )
        counters = self._pool.router.counters
        yield counter(
            "gateway_routed_prompt_tokens",
            "Prompt tokens that were sent to a replica.",
            (),
            [((), counters.num_prompt_tokens)],
        )
        yield counter(
            "gateway_routed_matched_tokens",
            "Of those, known to be cached at the replica that was chosen.",
            (),
            [((), counters.num_matched_tokens)],
        )
        yield from engine_metrics(_reports(replicas))


def _rows(replicas: Iterable[Replica], value: Value) -> Iterator[tuple[tuple[str, str], float]]:
    for each in replicas:
        yield (each.engine, each.target), value(each)


def _reports(replicas: Iterable[Replica]) -> Iterator[EngineReport]:
    """What connected schedulers told last; one that is silent or gone tells nothing."""
    for each in replicas:
        load, info = each.load.message, each.client.info
        if load is not None and info is not None:
            name = info.served_model_names[0]
            yield EngineReport(name, each.engine, load, info.kv_cache.config)
