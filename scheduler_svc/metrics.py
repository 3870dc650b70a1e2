"""The engine's figures for Prometheus, read when they are asked for and never on a step.

They are those that `WatchLoad` tells, from which gateways make the same metrics. Reading happens on
the exposition's thread; it takes plain numbers that the event loop's thread replaces, so it needs
no lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagewire.engine_metrics import EngineReport, engine_metrics
from scheduler_svc.convert.load import load_message
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.kv_sizing import describe_kv_cache

ENGINE = "0"
"""The label `engine`: a scheduler has one."""


class EngineCollector(Collector):
    """All figures of one engine."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def collect(self) -> Iterator[Metric]:
        core = self._core
        name = core.config.served_model_names[0]
        yield from engine_metrics(
            [EngineReport(name, ENGINE, load_message(core), self._cache_config())]
        )

    def _cache_config(self) -> Mapping[str, str]:
        info = self._core.info
        if info is None:
            return {}
        return describe_kv_cache(self._core.config, info.facts, info.kv_cache)
