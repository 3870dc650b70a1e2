"""Small replicas and workloads for tests of the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scheduler_svc.output import SchedulerOutput
from scheduler_svc.simulate.prompt import VOCAB_SIZE
from scheduler_svc.simulate.trace import TraceRequest
from scheduler_svc.simulate.virtual_engine import VirtualEngine
from tests.scheduler_svc.factories import make_limits


@dataclass(frozen=True)
class LinearStepTime:
    """So many milliseconds a step and a token: what arrives when depends on what was decided."""

    step_ms: float = 10.0
    token_ms: float = 1.0

    def seconds(self, output: SchedulerOutput) -> float:
        if not output.requests:
            return 0.0
        return (self.step_ms + self.token_ms * output.total_num_scheduled_tokens) / 1e3


def make_engine(*, max_steps_in_flight: int = 1, reject: bool = False, **limits: Any):
    limits = {"vocab_size": VOCAB_SIZE, "eos_token_ids": frozenset()} | limits
    return VirtualEngine(
        make_limits(**limits),
        LinearStepTime(),
        max_steps_in_flight=max_steps_in_flight,
        rejects_when_full=reject,
    )


def make_trace_request(
    arrival_time_s: float = 0.0, num_prompt: int = 8, num_output: int = 4, **overrides: Any
) -> TraceRequest:
    return TraceRequest(arrival_time_s, num_prompt, num_output, **overrides)
