"""What metrics cost: nanoseconds of a core for each token, request and scrape; the library's too.

    python -m benchmarks.metrics_cost

One thread, medians of several rounds; both sides take turns. A token is one `delivered` of one
output; the library's is what three of its metrics take for the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.output_record import OutputRecord, PromptRecord
from gateway.request_metrics import RequestMetrics
from pagewire.metric_buckets import TOKEN_LATENCY_S

ROUNDS, CALLS = 15, 20_000


def nanoseconds(work: Callable[[int], None], calls: int) -> float:
    """Time of a core for one call, in a run of so many."""
    begin_ns = time.thread_time_ns()
    work(calls)
    return (time.thread_time_ns() - begin_ns) / calls


class Ours:
    """The gateway's records over plain histograms."""

    def __init__(self) -> None:
        self.metrics = RequestMetrics()

    def record(self) -> OutputRecord:
        prompt = PromptRecord(self.metrics, "m", 4096, 100, 1, 64, time.monotonic())
        record = OutputRecord(prompt)
        record.added("0")
        record.scheduled(16, 0.01)
        return record

    def tokens(self, calls: int) -> None:
        record = self.record()
        for _ in range(calls):
            record.delivered(1)

    def requests(self, calls: int) -> None:
        for _ in range(calls):
            record = self.record()
            record.delivered(1)
            record.ended("length")

    def scrape(self, calls: int) -> None:
        registry = CollectorRegistry()
        registry.register(self.metrics)
        for _ in range(calls):
            generate_latest(registry)


class Library:
    """The same three figures of a token in prometheus_client's own metrics."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        labels = ["model_name", "engine"]
        self._tokens = Counter("tokens", "", labels, registry=registry).labels("m", "0")
        self._latency = Histogram(
            "latency", "", labels, buckets=TOKEN_LATENCY_S, registry=registry
        ).labels("m", "0")

    def tokens(self, calls: int) -> None:
        last_s = time.monotonic()
        for _ in range(calls):
            now_s = time.monotonic()
            self._tokens.inc()
            self._latency.observe(now_s - last_s)
            last_s = now_s


def main() -> None:
    ours, library = Ours(), Library()
    work: dict[str, tuple[Callable[[int], None], int]] = {
        "a token": (ours.tokens, CALLS),
        "a token, prometheus_client": (library.tokens, CALLS),
        "a request's end": (ours.requests, CALLS // 10),
        "a scrape of one replica's requests": (ours.scrape, 20),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, (run, calls) in work.items():
            times[name].append(nanoseconds(run, calls))
    for name, values in times.items():
        print(f"{name}: {median(values):,.0f} ns")


if __name__ == "__main__":
    main()
