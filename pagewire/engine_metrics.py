"""The metrics of engines, made of what `WatchLoad` tells.

The scheduler shows itself so, the gateway all its replicas. Names and meanings are vLLM's with our
prefix; what is ours alone is marked in docs/metrics.md. It knows no engine and no stream: whoever
has a message shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from pagewire.kit.metric_families import counter, gauge, histogram
from pagewire.metric_buckets import ITERATION_TOKENS, KV_BLOCK_S
from pagewire.v1.scheduler_pb2 import EngineFigures, HistogramFigures, WatchLoadResponse

LABELS = ("model_name", "engine")
_LABEL_NAME = re.compile("[a-z][a-z0-9_]*")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""By level of sleep."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What one engine tells of itself."""

    model_name: str
    """The first name under which its model is served."""
    engine: str
    """Tells it apart from others of the same model."""
    load: WatchLoadResponse
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """Settings and sizes of its KV cache by name, as text; empty before it is known."""

    @property
    def labels(self) -> tuple[str, str]:
        return self.model_name, self.engine


Value = Callable[[WatchLoadResponse, EngineFigures], float]
Figures = Callable[[EngineFigures], HistogramFigures]

_GAUGES: Sequence[tuple[str, str, Value]] = (
    ("num_requests_running", "Requests in the batch.", lambda load, _: load.num_requests_running),
    ("num_requests_waiting", "Requests in the queue.", lambda load, _: load.num_requests_waiting),
    (
        "kv_cache_usage_perc",
        "Share of KV blocks that requests hold; 1: all.",
        lambda load, _: load.kv_cache_usage,
    ),
    ("engine_paused", "1 in a pause.", lambda _, figures: figures.paused),
)
_COUNTERS: Sequence[tuple[str, str, Value]] = (
    ("num_preemptions", "Preemptions.", lambda load, _: load.num_preemptions),
    (
        "prefix_cache_queries",
        "Tokens looked up in the prefix cache at admissions.",
        lambda load, _: load.prefix_cache_queries,
    ),
    (
        "prefix_cache_hits",
        "Tokens found in the prefix cache at admissions.",
        lambda load, _: load.prefix_cache_hits,
    ),
    (
        "spec_decode_num_drafts",
        "Verifications: one a request and step that had drafts.",
        lambda _, figures: figures.num_drafts,
    ),
    (
        "spec_decode_num_draft_tokens",
        "Drafts that were verified.",
        lambda _, figures: figures.num_draft_tokens,
    ),
    (
        "spec_decode_num_accepted_tokens",
        "Drafts that were right.",
        lambda _, figures: figures.num_accepted_tokens,
    ),
    ("engine_steps", "Steps executed.", lambda load, _: load.num_steps),
    (
        "engine_prompt_tokens",
        "Prompt tokens of requests whose prompt was computed to its end here.",
        lambda _, figures: figures.prompt_tokens,
    ),
    (
        "engine_generation_tokens",
        "Tokens that steps gave, those behind a stop string included.",
        lambda load, _: load.generation_tokens,
    ),
    (
        "worker_idle_seconds",
        "Seconds that the workers had no step queued though there was work.",
        lambda _, figures: figures.worker_idle_ns / 1e9,
    ),
    (
        "workers_lost",
        "Times that the workers were lost.",
        lambda _, figures: figures.num_workers_lost,
    ),
    (
        "scheduler_stalls",
        "Times that nothing ran for 16 steps though something waited.",
        lambda _, figures: figures.num_stalls,
    ),
)
_HISTOGRAMS: Sequence[tuple[str, str, Sequence[float], Figures]] = (
    (
        "iteration_tokens_total",
        "Tokens of a step: those that it gave, and prompts that it computed to their end.",
        ITERATION_TOKENS,
        lambda figures: figures.iteration_tokens,
    ),
    (
        "kv_block_lifetime_seconds",
        "From a sampled KV block's allocation to its eviction.",
        KV_BLOCK_S,
        lambda figures: figures.kv_block_lifetime,
    ),
    (
        "kv_block_idle_before_evict_seconds",
        "From a sampled KV block's last use to its eviction.",
        KV_BLOCK_S,
        lambda figures: figures.kv_block_idle_before_evict,
    ),
    (
        "kv_block_reuse_gap_seconds",
        "Between uses of a sampled KV block.",
        KV_BLOCK_S,
        lambda figures: figures.kv_block_reuse_gap,
    ),
)


def engine_metrics(reports: Iterable[EngineReport]) -> Iterator[Metric]:
    """Return the metrics of some engines, each of which has told the latest of itself."""
    reports = list(reports)
    running = [report for report in reports if report.load.HasField("figures")]
    yield gauge(
        "engine_ready",
        "1 while workers are ready.",
        LABELS,
        ((report.labels, report.load.ready) for report in reports),
    )
    for name, text, value in _GAUGES:
        yield gauge(name, text, LABELS, _rows(running, value))
    yield _waiting_by_reason(running)
    yield _sleep_state(running)
    yield _cache_config_info([report for report in running if report.cache_config])
    for name, text, value in _COUNTERS:
        yield counter(name, text, LABELS, _rows(running, value))
    yield _accepted_per_pos(running)
    for name, text, bounds, figures in _HISTOGRAMS:
        yield histogram(name, text, LABELS, _histogram_rows(running, bounds, figures))


def _rows(reports: Iterable[EngineReport], value: Value) -> Iterator[tuple[tuple[str, str], float]]:
    for report in reports:
        yield report.labels, value(report.load, report.load.figures)


def _histogram_rows(
    reports: Iterable[EngineReport], bounds: Sequence[float], figures: Figures
) -> Iterator[tuple[tuple[str, str], Sequence[float], Sequence[int], float]]:
    for report in reports:
        told = figures(report.load.figures)
        # Another version may have other buckets, and an engine need not keep each histogram.
        if len(told.counts) == len(bounds) + 1:
            yield report.labels, bounds, told.counts, told.sum


def _waiting_by_reason(reports: Iterable[EngineReport]) -> Metric:
    """Deferred requests wait for something of their own, the others for room."""
    rows = []
    for report in reports:
        num_deferred = report.load.figures.num_requests_deferred
        num_capacity = report.load.num_requests_waiting - num_deferred
        rows.append(((*report.labels, "capacity"), num_capacity))
        rows.append(((*report.labels, "deferred"), num_deferred))
    text = "Requests in the queue, by what they wait for."
    return gauge("num_requests_waiting_by_reason", text, (*LABELS, "reason"), rows)


def _sleep_state(reports: Iterable[EngineReport]) -> Metric:
    rows = [
        ((*report.labels, state), float(report.load.figures.sleep_level == level))
        for report in reports
        for level, state in enumerate(SLEEP_STATES)
    ]
    return gauge("engine_sleep_state", "1 for the state.", (*LABELS, "sleep_state"), rows)


def _cache_config_info(reports: Sequence[EngineReport]) -> Metric:
    told = {name for report in reports for name in report.cache_config}
    # They come from a peer, and a wrong one would make the whole exposition unreadable.
    names = sorted(name for name in told if _LABEL_NAME.fullmatch(name))
    rows = [
        ((*report.labels, *(report.cache_config.get(name, "") for name in names)), 1.0)
        for report in reports
    ]
    return gauge("cache_config_info", "The KV cache; always 1.", (*LABELS, *names), rows)


def _accepted_per_pos(reports: Iterable[EngineReport]) -> Metric:
    rows = [
        ((*report.labels, str(position)), number)
        for report in reports
        for position, number in enumerate(report.load.figures.num_accepted_tokens_per_pos)
    ]
    text = "Drafts that were right, by their place among the drafts of a step."
    return counter("spec_decode_num_accepted_tokens_per_pos", text, (*LABELS, "position"), rows)
