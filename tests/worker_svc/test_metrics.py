"""What a worker shows of the steps that it ran, and of its state."""

from __future__ import annotations

import asyncio

from worker_svc.calls import WorkerState, WorkerStatus
from worker_svc.metrics import StepCounters, WorkerCollector
from worker_svc.step import ModelRunnerOutput, StepTimings
from worker_svc.step_executor import StepDone, StepFailure

Future = asyncio.Future[StepDone | StepFailure]


def over(outcome: StepDone | StepFailure) -> Future:
    future: Future = asyncio.get_running_loop().create_future()
    future.set_result(outcome)
    return future


async def test_steps_and_where_their_time_went_are_counted() -> None:
    counters = StepCounters()
    timings = StepTimings(prepare_ns=1, forward_ns=2_000_000_000, sample_ns=3, total_ns=6)
    output = ModelRunnerOutput(
        step=1, handles=[1, 2], num_sampled=[1, 2], sampled_token_ids=[5, 6, 7], timings=timings
    )
    for outcome in (StepDone(output, idle_ns=4), StepFailure(2, "OOM", "no memory")):
        counters.count(over(outcome))
    dropped: Future = asyncio.get_running_loop().create_future()
    dropped.cancel()
    counters.count(dropped)
    status = WorkerStatus(1, WorkerState.READY, "s", "d", num_requests=2)
    shown = {metric.name: metric for metric in WorkerCollector(counters, lambda: status).collect()}
    values = {name: metric.samples[0].value for name, metric in shown.items()}
    assert values["pagewire:worker_steps"] == values["pagewire:worker_failed_steps"] == 1
    assert (values["pagewire:worker_sampled_tokens"], values["pagewire:worker_requests"]) == (3, 2)
    parts = {s.labels["part"]: s.value for s in shown["pagewire:worker_step_seconds"].samples}
    assert parts["forward"] == 2.0
    assert set(parts) == {"prepare", "forward", "sample", "idle"}
    states = {s.labels["state"]: s.value for s in shown["pagewire:worker_state"].samples}
    assert [state for state, value in states.items() if value] == ["ready"]
