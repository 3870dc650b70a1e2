"""What is counted and timed about requests, by model and replica, under vLLM's names.

Plain numbers that the event loop counts up and the exposition's thread reads. A request here is one
output of one prompt, as in vLLM. When something is observed, and of which replica, is
`gateway.output_record`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagewire.engine_metrics import LABELS
from pagewire.kit.histogram import Histogram, one_two_five
from pagewire.kit.metric_families import counter, histogram
from pagewire.metric_buckets import (
    NUM_OUTPUTS,
    REQUEST_LATENCY_S,
    TIME_TO_FIRST_TOKEN_S,
    TOKEN_LATENCY_S,
)

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
_SOURCES = ("local_compute", "local_cache_hit")

Pick = Callable[["RequestSeries"], Histogram]


class RequestSeries:
    """The figures of one model on one replica; they grow forever."""

    def __init__(self, max_model_len: int) -> None:
        """Begin with nothing counted.

        Args:
            max_model_len: In tokens; the largest bucket of sizes.
        """
        sizes = one_two_five(max_model_len)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        """Of the prompt tokens, those found in the prefix cache."""
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.time_to_first_token = Histogram(TIME_TO_FIRST_TOKEN_S)
        self.inter_token_latency = Histogram(TOKEN_LATENCY_S)
        self.time_per_output_token = Histogram(TOKEN_LATENCY_S)
        self.e2e_latency = Histogram(REQUEST_LATENCY_S)
        self.queue_time = Histogram(REQUEST_LATENCY_S)
        self.prefill_time = Histogram(REQUEST_LATENCY_S)
        self.decode_time = Histogram(REQUEST_LATENCY_S)
        self.inference_time = Histogram(REQUEST_LATENCY_S)
        self.num_prompt_tokens = Histogram(sizes)
        self.num_generation_tokens = Histogram(sizes)
        self.max_num_generation_tokens = Histogram(sizes)
        self.max_tokens = Histogram(sizes)
        self.prefill_kv_computed_tokens = Histogram(sizes)
        self.num_outputs = Histogram(NUM_OUTPUTS)


_HISTOGRAMS: Sequence[tuple[str, str, Pick]] = (
    (
        "time_to_first_token_seconds",
        "From arrival at the gateway to the first token.",
        lambda series: series.time_to_first_token,
    ),
    (
        "inter_token_latency_seconds",
        "Between two tokens of a request.",
        lambda series: series.inter_token_latency,
    ),
    (
        "request_time_per_output_token_seconds",
        "Mean time between two tokens of a finished request.",
        lambda series: series.time_per_output_token,
    ),
    (
        "e2e_request_latency_seconds",
        "From arrival at the gateway to the end of a finished request.",
        lambda series: series.e2e_latency,
    ),
    (
        "request_queue_time_seconds",
        "In the queue of the first engine that a finished request came to.",
        lambda series: series.queue_time,
    ),
    (
        "request_prefill_time_seconds",
        "From the queue to the first token of a finished request.",
        lambda series: series.prefill_time,
    ),
    (
        "request_decode_time_seconds",
        "From the first to the last token of a finished request.",
        lambda series: series.decode_time,
    ),
    (
        "request_inference_time_seconds",
        "From the queue to the last token of a finished request.",
        lambda series: series.inference_time,
    ),
    (
        "request_prompt_tokens",
        "Prompt tokens of a finished request.",
        lambda series: series.num_prompt_tokens,
    ),
    (
        "request_generation_tokens",
        "Output tokens of a finished request.",
        lambda series: series.num_generation_tokens,
    ),
    (
        "request_max_num_generation_tokens",
        "Output tokens of the longest of a prompt's outputs, all of which have finished.",
        lambda series: series.max_num_generation_tokens,
    ),
    (
        "request_params_max_tokens",
        "max_tokens of a finished request.",
        lambda series: series.max_tokens,
    ),
    (
        "request_prefill_kv_computed_tokens",
        "Prompt tokens of a finished request that were not found in the prefix cache.",
        lambda series: series.prefill_kv_computed_tokens,
    ),
    (
        "request_params_n",
        "Outputs of a prompt, all of which have finished.",
        lambda series: series.num_outputs,
    ),
)


class RequestMetrics(Collector):
    """All series, made when they are first wanted: one for each model and place of a replica."""

    def __init__(self) -> None:
        self.connected: Callable[[], Iterable[tuple[str, str, int]]] = tuple
        """Gives replicas that are shown before they have had a request, as `of` takes them."""
        self._series: dict[tuple[str, str], RequestSeries] = {}

    def of(self, model_name: str, engine: str, max_model_len: int) -> RequestSeries:
        """Return the figures of a model on a replica; from any thread.

        Args:
            model_name: The first name under which it is served.
            engine: Label of the replica.
            max_model_len: Counts the first time only.
        """
        series = self._series.get((model_name, engine))
        if series is None:
            series = self._series.setdefault((model_name, engine), RequestSeries(max_model_len))
        return series

    def collect(self) -> Iterator[Metric]:
        for model_name, engine, max_model_len in self.connected():
            self.of(model_name, engine, max_model_len)
        rows = sorted(self._series.items())
        yield counter(
            "prompt_tokens",
            "Prompt tokens of requests that have their first token.",
            LABELS,
            ((labels, each.prompt_tokens) for labels, each in rows),
        )
        yield counter(
            "prompt_tokens_by_source",
            "The same, by where their KV came from.",
            (*LABELS, "source"),
            _by_source(rows),
        )
        yield counter(
            "prompt_tokens_cached",
            "Those of them that were found in the prefix cache.",
            LABELS,
            ((labels, each.cached_tokens) for labels, each in rows),
        )
        yield counter(
            "generation_tokens",
            "Output tokens.",
            LABELS,
            ((labels, each.generation_tokens) for labels, each in rows),
        )
        yield counter(
            "request_success",
            "Requests that ended after they were admitted.",
            (*LABELS, "finished_reason"),
            (
                ((*labels, reason), number)
                for labels, each in rows
                for reason, number in each.finished.items()
            ),
        )
        for name, text, pick in _HISTOGRAMS:
            yield histogram(name, text, LABELS, _histogram_rows(rows, pick))


Rows = Iterable[tuple[tuple[str, str], RequestSeries]]


def _by_source(rows: Rows) -> Iterator[tuple[tuple[str, str, str], float]]:
    for labels, each in rows:
        cached = each.cached_tokens
        for source, number in zip(_SOURCES, (each.prompt_tokens - cached, cached), strict=True):
            yield (*labels, source), number


def _histogram_rows(
    rows: Rows, pick: Pick
) -> Iterator[tuple[tuple[str, str], Sequence[float], Sequence[int], float]]:
    for labels, each in rows:
        told = pick(each)
        yield labels, told.bounds, list(told.counts), told.sum
