"""What one output adds to the figures of its replica, as its tokens come and when it ends."""

from __future__ import annotations

import pytest

from gateway.output_record import OutputRecord, PromptRecord
from gateway.request_metrics import RequestMetrics, RequestSeries


class Bench:
    """Records of one prompt's outputs on a clock that the test moves."""

    def __init__(self, num_outputs: int = 1, max_tokens: int | None = 50) -> None:
        self.metrics, self.now_s = RequestMetrics(), 100.0
        prompt = PromptRecord(self.metrics, "m", 1000, 20, num_outputs, max_tokens, self.now_s)
        self.records = [OutputRecord(prompt, lambda: self.now_s) for _ in range(num_outputs)]

    def series(self, engine: str = "0") -> RequestSeries:
        return self.metrics.of("m", engine, 1000)

    def deliver(self, record: OutputRecord, *tokens_at: tuple[float, int]) -> None:
        for now_s, num_tokens in tokens_at:
            self.now_s = now_s
            record.delivered(num_tokens)


def test_the_first_token_and_each_gap_are_observed() -> None:
    bench = Bench()
    (record,) = bench.records
    record.added("0")
    record.scheduled(16, 0.25)
    bench.deliver(record, (101.0, 1), (101.5, 1), (102.5, 2))
    series = bench.series()
    assert (series.time_to_first_token.count, series.time_to_first_token.sum) == (1, 1.0)
    # Two that come together share their second.
    assert (series.inter_token_latency.count, series.inter_token_latency.sum) == (3, 1.5)
    assert (series.prompt_tokens, series.cached_tokens, series.generation_tokens) == (20, 16, 4)


def test_tokens_that_come_with_the_first_one_came_at_once() -> None:
    bench = Bench()
    (record,) = bench.records
    record.added("0")
    bench.deliver(record, (101.0, 3))
    series = bench.series()
    assert (series.inter_token_latency.count, series.inter_token_latency.sum) == (2, 0.0)


def test_a_finished_request_is_in_every_histogram() -> None:
    bench = Bench()
    (record,) = bench.records
    record.added("0")
    record.scheduled(16, 0.25)
    bench.deliver(record, (101.0, 1), (103.0, 1), (105.0, 1))
    bench.now_s = 106.0
    record.ended("stop")
    series = bench.series()
    sums = {
        "e2e_latency": 6.0,
        "queue_time": 0.25,
        "prefill_time": 0.75,
        "decode_time": 4.0,
        "inference_time": 4.75,
        "time_per_output_token": 2.0,
        "num_prompt_tokens": 20,
        "num_generation_tokens": 3,
        "max_num_generation_tokens": 3,
        "max_tokens": 50,
        "prefill_kv_computed_tokens": 4,
        "num_outputs": 1,
    }
    for name, total in sums.items():
        observed = getattr(series, name)
        assert (name, observed.count, observed.sum) == (name, 1, total)
    assert series.finished["stop"] == 1


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_what_did_not_finish_is_only_counted(reason: str) -> None:
    bench = Bench()
    (record,) = bench.records
    record.added("0")
    bench.deliver(record, (101.0, 1))
    record.ended(reason)
    record.ended("stop")
    series = bench.series()
    assert series.finished == {**dict.fromkeys(series.finished, 0), reason: 1}
    assert series.e2e_latency.count == series.num_outputs.count == 0


def test_siblings_are_requests_and_their_prompt_is_one() -> None:
    bench = Bench(num_outputs=2)
    for record, num_tokens in zip(bench.records, (3, 7), strict=True):
        record.added("0")
        bench.deliver(record, (101.0, num_tokens))
        assert bench.series().num_outputs.count == 0
        record.ended("length")
    series = bench.series()
    assert (series.finished["length"], series.num_generation_tokens.sum) == (2, 10)
    longest = series.max_num_generation_tokens
    assert (longest.count, longest.sum, series.num_outputs.sum) == (1, 7, 2)


def test_a_second_replica_gets_what_comes_from_then_on() -> None:
    bench = Bench()
    (record,) = bench.records
    record.added("0")
    record.scheduled(16, 0.25)
    bench.deliver(record, (101.0, 2))
    record.added("1")
    record.scheduled(0, 5.0)
    bench.deliver(record, (111.0, 1))
    record.ended("stop")
    first, second = bench.series("0"), bench.series("1")
    assert (first.generation_tokens, second.generation_tokens) == (2, 1)
    assert (first.prompt_tokens, second.prompt_tokens) == (20, 0)
    assert (first.finished["stop"], second.finished["stop"]) == (0, 1)
    # The first admission's figures, on the one that finished it.
    assert (second.queue_time.sum, second.prefill_kv_computed_tokens.sum) == (0.25, 4)
    assert second.inter_token_latency.sum == 10.0


def test_a_request_that_no_replica_has_had_counts_nowhere() -> None:
    bench = Bench()
    bench.records[0].ended("abort")
    assert bench.series().finished["abort"] == 0


def test_a_replica_is_shown_before_its_first_request() -> None:
    metrics = RequestMetrics()
    metrics.connected = lambda: [("m", "3", 100)]
    shown = {metric.name: metric for metric in metrics.collect()}
    (sample,) = shown["pagewire:generation_tokens"].samples
    assert (sample.labels, sample.value) == ({"model_name": "m", "engine": "3"}, 0)
    reasons = {s.labels["finished_reason"] for s in shown["pagewire:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "error", "repetition"}
