"""What engines tell, as metrics: labels, histograms of other versions, engines that only start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client.core import Metric

from pagewire.engine_metrics import EngineReport, engine_metrics
from pagewire.metric_buckets import ITERATION_TOKENS
from pagewire.v1.scheduler_pb2 import EngineFigures, HistogramFigures, WatchLoadResponse


def report(engine: str = "0", cache: Mapping[str, str] | None = None, **load: Any) -> EngineReport:
    return EngineReport("m", engine, WatchLoadResponse(**load), cache or {})


def metrics(*reports: EngineReport) -> dict[str, Metric]:
    return {metric.name: metric for metric in engine_metrics(reports)}


def values(metric: Metric, label: str = "engine") -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in metric.samples}


def test_every_engine_has_its_own_figures() -> None:
    shown = metrics(
        report("0", num_requests_running=3, figures=EngineFigures(num_drafts=5)),
        report("1", num_requests_running=4, figures=EngineFigures(num_drafts=6)),
    )
    assert values(shown["pagewire:num_requests_running"]) == {"0": 3, "1": 4}
    assert values(shown["pagewire:spec_decode_num_drafts"]) == {"0": 5, "1": 6}


def test_an_engine_that_has_had_no_worker_shows_only_that() -> None:
    shown = metrics(report())
    assert values(shown.pop("pagewire:engine_ready")) == {"0": 0}
    assert not any(metric.samples for metric in shown.values())


def test_waiting_requests_are_told_apart_by_reason() -> None:
    load = report(num_requests_waiting=5, figures=EngineFigures(num_requests_deferred=2))
    shown = metrics(load)["pagewire:num_requests_waiting_by_reason"]
    assert values(shown, "reason") == {"capacity": 3, "deferred": 2}


def test_one_state_of_sleep_is_1() -> None:
    shown = metrics(report(figures=EngineFigures(sleep_level=1)))["pagewire:engine_sleep_state"]
    assert values(shown, "sleep_state") == {"awake": 0, "weights_offloaded": 1, "discard_all": 0}


def test_accepted_drafts_have_their_position() -> None:
    shown = metrics(report(figures=EngineFigures(num_accepted_tokens_per_pos=[7, 3])))
    per_pos = shown["pagewire:spec_decode_num_accepted_tokens_per_pos"]
    assert values(per_pos, "position") == {"0": 7, "1": 3}


def test_caches_of_several_versions_have_all_labels() -> None:
    shown = metrics(
        report("0", {"block_size": "16"}, figures=EngineFigures()),
        report("1", {"block_size": "32", "later": "x"}, figures=EngineFigures()),
        report("2", figures=EngineFigures()),
    )["pagewire:cache_config_info"]
    labels = [
        (s.labels["engine"], s.labels["block_size"], s.labels["later"]) for s in shown.samples
    ]
    assert labels == [("0", "16", ""), ("1", "32", "x")]
    assert {sample.value for sample in shown.samples} == {1.0}


def test_a_name_that_is_no_label_harms_nothing() -> None:
    shown = metrics(report(cache={'a"} 1\n': "x", "b": "y"}, figures=EngineFigures()))
    (sample,) = shown["pagewire:cache_config_info"].samples
    assert sample.labels == {"model_name": "m", "engine": "0", "b": "y"}


def test_a_histogram_with_other_buckets_is_left_out() -> None:
    right = HistogramFigures(counts=[1] * (len(ITERATION_TOKENS) + 1), sum=3.0)
    wrong = HistogramFigures(counts=[1, 2], sum=3.0)
    shown = metrics(
        report("0", figures=EngineFigures(iteration_tokens=right)),
        report("1", figures=EngineFigures(iteration_tokens=wrong)),
        report("2", figures=EngineFigures()),
    )["pagewire:iteration_tokens_total"]
    assert {sample.labels["engine"] for sample in shown.samples} == {"0"}
