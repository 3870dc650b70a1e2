"""The worker's figures for Prometheus: steps, where their time went, and its state.

Counted on the event loop once a step, read on the exposition's thread. It knows no device and no
stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagewire.kit.metric_families import counter, gauge
from worker_svc.calls import WorkerState, WorkerStatus
from worker_svc.step_executor import StepDone, StepFailure

_PARTS = ("prepare", "forward", "sample", "idle")


class StepCounters:
    """What steps came to; grows forever."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_failed_steps = 0
        self.num_sampled_tokens = 0
        self.ns_by_part = dict.fromkeys(_PARTS, 0)

    def count(self, future: asyncio.Future[StepDone | StepFailure]) -> None:
        """Take in a step that is over, unless it was dropped."""
        if future.cancelled() or future.exception() is not None:
            return
        outcome = future.result()
        if isinstance(outcome, StepFailure):
            self.num_failed_steps += 1
            return
        self.num_steps += 1
        self.num_sampled_tokens += len(outcome.output.sampled_token_ids)
        timings, by_part = outcome.output.timings, self.ns_by_part
        by_part["prepare"] += timings.prepare_ns
        by_part["forward"] += timings.forward_ns
        by_part["sample"] += timings.sample_ns
        by_part["idle"] += outcome.idle_ns


class WorkerCollector(Collector):
    """All figures of one worker."""

    def __init__(self, counters: StepCounters, status: Callable[[], WorkerStatus]) -> None:
        self._counters = counters
        self._status = status

    def collect(self) -> Iterator[Metric]:
        counters, status = self._counters, self._status()
        yield gauge(
            "worker_state",
            "1 for the state.",
            ("state",),
            [((state.value,), float(state is status.state)) for state in WorkerState],
        )
        yield gauge("worker_requests", "Requests that it knows.", (), [((), status.num_requests)])
        yield counter("worker_steps", "Steps executed.", (), [((), counters.num_steps)])
        yield counter(
            "worker_failed_steps", "Steps that failed.", (), [((), counters.num_failed_steps)]
        )
        yield counter(
            "worker_sampled_tokens", "Tokens sampled.", (), [((), counters.num_sampled_tokens)]
        )
        yield counter(
            "worker_step_seconds",
            "Where the time of steps went; idle: nothing was queued before them.",
            ("part",),
            [((part,), ns / 1e9) for part, ns in counters.ns_by_part.items()],
        )
