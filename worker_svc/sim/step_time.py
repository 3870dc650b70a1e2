"""How long a simulated step takes.

Owns the models of time; a roofline of a named GPU and model size will be one more of them. The
runner waits on the device thread, so that time passes as it does with a real device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from worker_svc.step import SchedulerOutput


class StepTime(Protocol):
    """A model of a step's duration."""

    def seconds(self, scheduler_output: SchedulerOutput) -> float:
        """Seconds that the device would need for the step."""


@dataclass(frozen=True, slots=True)
class FixedStepTime:
    """Every step that computes tokens takes the same time."""

    step_time_s: float

    def seconds(self, scheduler_output: SchedulerOutput) -> float:
        return self.step_time_s if scheduler_output.handles else 0.0
