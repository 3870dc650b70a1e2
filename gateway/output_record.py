"""When the tokens of one output came, and what that adds to the figures of its replica.

It lives as long as the output, wherever that runs: what a second engine or tokenizer makes again is
not delivered again, so it is not counted again. It knows neither streams nor text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.request_metrics import RequestMetrics, RequestSeries

Clock = Callable[[], float]


@dataclass(slots=True)
class PromptRecord:
    """What the outputs of one prompt have in common."""

    metrics: RequestMetrics
    model_name: str
    """The first name under which the model is served."""
    max_model_len: int
    num_prompt_tokens: int
    num_outputs: int
    max_tokens: int | None
    """Of the sampling parameters."""
    arrived_s: float
    """On the clock of the records."""
    num_unfinished: int = 0
    longest: int = 0
    """Output tokens of the longest that has finished."""

    def __post_init__(self) -> None:
        self.num_unfinished = self.num_outputs


class OutputRecord:
    """The times of one output. Used from one event loop."""

    __slots__ = (
        "_added_s",
        "_clock",
        "_first_token_s",
        "_is_over",
        "_last_token_s",
        "_num_cached_tokens",
        "_num_tokens",
        "_prompt",
        "_queue_s",
        "_series",
    )

    def __init__(self, prompt: PromptRecord, clock: Clock = time.monotonic) -> None:
        self._prompt = prompt
        self._clock = clock
        self._series: RequestSeries | None = None
        self._added_s: float | None = None
        self._queue_s: float | None = None
        self._num_cached_tokens = 0
        self._first_token_s: float | None = None
        self._last_token_s = 0.0
        self._num_tokens = 0
        self._is_over = False

    def added(self, engine: str) -> None:
        """Note that it goes to a replica, whose figures get what comes from now on."""
        prompt = self._prompt
        self._series = prompt.metrics.of(prompt.model_name, engine, prompt.max_model_len)
        if self._queue_s is None:
            self._added_s = self._clock()

    def scheduled(self, num_cached_tokens: int, queue_s: float) -> None:
        """Note its first step on an engine; what the first one says stays.

        Args:
            num_cached_tokens: Of the prompt.
            queue_s: How long it waited in the engine's queue.
        """
        if self._queue_s is None:
            self._queue_s, self._num_cached_tokens = queue_s, num_cached_tokens

    def delivered(self, num_tokens: int) -> None:
        """Count new tokens, at least one; those that come together share the time since the last.

        So there is one latency less than there are tokens, however they came.
        """
        now_s, series = self._clock(), self._series
        if series is None:
            return
        series.generation_tokens += num_tokens
        self._num_tokens += num_tokens
        if self._first_token_s is None:
            self._first_token_s = self._last_token_s = now_s
            series.prompt_tokens += self._prompt.num_prompt_tokens
            series.cached_tokens += self._num_cached_tokens
            series.time_to_first_token.observe(now_s - self._prompt.arrived_s)
            num_tokens -= 1
            if not num_tokens:
                return
        series.inter_token_latency.observe_many(
            (now_s - self._last_token_s) / num_tokens, num_tokens
        )
        self._last_token_s = now_s

    def ended(self, reason: str) -> None:
        """Count the end, once; only what finished by itself is in histograms of requests.

        Args:
            reason: One of `request_metrics.FINISHED_REASONS`.
        """
        series = self._series
        if self._is_over or series is None:
            return
        self._is_over = True
        series.finished[reason] += 1
        if reason not in ("abort", "error"):
            self._observe(series)

    def _observe(self, series: RequestSeries) -> None:
        prompt = self._prompt
        self._observe_times(series)
        series.num_prompt_tokens.observe(prompt.num_prompt_tokens)
        series.num_generation_tokens.observe(self._num_tokens)
        num_computed = prompt.num_prompt_tokens - self._num_cached_tokens
        series.prefill_kv_computed_tokens.observe(num_computed)
        if prompt.max_tokens is not None:
            series.max_tokens.observe(prompt.max_tokens)
        prompt.longest = max(prompt.longest, self._num_tokens)
        prompt.num_unfinished -= 1
        if prompt.num_unfinished == 0:
            series.max_num_generation_tokens.observe(prompt.longest)
            series.num_outputs.observe(prompt.num_outputs)

    def _observe_times(self, series: RequestSeries) -> None:
        now_s, last_s = self._clock(), self._last_token_s
        series.e2e_latency.observe(now_s - self._prompt.arrived_s)
        first_s = self._first_token_s
        if first_s is None or self._added_s is None:
            return  # it was over without a token
        queue_s = self._queue_s or 0.0
        scheduled_s = self._added_s + queue_s
        series.queue_time.observe(queue_s)
        series.prefill_time.observe(max(first_s - scheduled_s, 0.0))
        series.decode_time.observe(last_s - first_s)
        series.inference_time.observe(max(last_s - scheduled_s, 0.0))
        num_gaps = self._num_tokens - 1
        series.time_per_output_token.observe((last_s - first_s) / num_gaps if num_gaps else 0.0)
