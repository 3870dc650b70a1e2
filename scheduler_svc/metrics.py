"""The engine's figures for Prometheus, read when they are asked for and never on a step.

Names are vLLM's with our prefix. Reading happens on the exposition's thread; it takes plain numbers
that the event loop's thread replaces, so it needs no lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from scheduler_svc.output import SchedulerStats
from scheduler_svc.pause import PauseState


class EngineCollector(Collector):
    """All figures of one engine."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def collect(self) -> Iterator[Metric]:
        stats, counters = self._core.make_stats(), self._core.counters
        ready = self._core.state is EngineState.READY
        yield _gauge("engine_ready", "1 while a worker is ready.", float(ready))
        yield _counter("engine_steps", "Steps executed.", counters.num_steps)
        yield _counter(
            "prompt_tokens", "Prompt tokens of requests that began.", counters.prompt_tokens
        )
        yield _counter("generation_tokens", "Tokens generated.", counters.generation_tokens)
        yield _counter(
            "worker_idle_seconds",
            "Seconds that the worker had no step queued though there was work.",
            counters.worker_idle_ns / 1e9,
        )
        yield _counter("workers_lost", "Times that the worker was lost.", counters.num_workers_lost)
        is_paused = self._core.pause_state is not PauseState.UNPAUSED
        yield _gauge("engine_paused", "1 in a pause.", float(is_paused))
        yield _sleep_state(self._core.sleep.level)
        yield _counter(
            "scheduler_stalls",
            "Times that nothing ran for 16 steps though something waited.",
            self._core.liveness.num_stalls,
        )
        if stats is None:
            return
        yield _gauge("num_requests_running", "Running requests.", stats.num_requests_running)
        yield _gauge("num_requests_waiting", "Waiting requests.", stats.num_requests_waiting)
        yield _waiting_by_reason(stats)
        yield _gauge(
            "kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", stats.kv_cache_usage
        )
        yield _counter("num_preemptions", "Preemptions.", stats.num_preemptions)
        yield _counter(
            "prefix_cache_queries", "Tokens looked up at admissions.", stats.prefix_cache_queries
        )
        yield _counter("prefix_cache_hits", "Tokens found at admissions.", stats.prefix_cache_hits)
        yield _counter("spec_decode_num_drafts", "Steps of requests with drafts.", stats.num_drafts)
        yield _counter(
            "spec_decode_num_draft_tokens", "Drafts that were verified.", stats.num_draft_tokens
        )
        yield _counter(
            "spec_decode_num_accepted_tokens", "Drafts that were right.", stats.num_accepted_tokens
        )


def _sleep_state(level: int) -> Metric:
    family = GaugeMetricFamily(
        "pagewire_engine_sleep_state", "1 for the state of the engine.", labels=["sleep_state"]
    )
    for state_level, name in enumerate(("awake", "weights_offloaded", "discard_all")):
        family.add_metric([name], float(level == state_level))
    return family


def _waiting_by_reason(stats: SchedulerStats) -> Metric:
    """Deferred requests wait for something of their own, the others for room."""
    family = GaugeMetricFamily(
        "pagewire_num_requests_waiting_by_reason", "Waiting requests.", labels=["reason"]
    )
    num_deferred = stats.num_requests_deferred
    family.add_metric(["capacity"], stats.num_requests_waiting - num_deferred)
    family.add_metric(["deferred"], num_deferred)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pagewire_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"pagewire_{name}", text, value=value)
