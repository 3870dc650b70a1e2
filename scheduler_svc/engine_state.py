"""What the engine shows of itself: its state, its counters, and the seam to its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pagewire.kit.errors import PagewireError
from pagewire.kit.histogram import Histogram
from pagewire.metric_buckets import ITERATION_TOKENS
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.step_figures import StepTimings


class EngineState(Enum):
    """Whether steps can run."""

    STARTING = "starting"
    READY = "ready"
    RECOVERING = "recovering"


class OutputSink(Protocol):
    """A client of the engine. Its methods return at once and raise nothing."""

    def put_admitted(self, request_id: str) -> None:
        """Note that a request was taken after all, which `add_request` left open."""

    def put_outputs(self, outputs: EngineCoreOutputs, timings: StepTimings) -> None:
        """Take what a step gave."""

    def put_finished(self, finished: Sequence[FinishedRequest]) -> None:
        """Take requests that were ended from outside a step."""

    def put_suspicions(self, counts: Mapping[str, int]) -> None:
        """Note how often requests have been suspected of what went wrong with a step.

        Args:
            counts: By id; some may be other clients'.
        """

    def set_recovering(self, recovering: bool) -> None:
        """Note that the worker is lost, or back."""

    def set_draining(self, deadline_s: float) -> None:
        """Note that the engine goes away in so many seconds."""

    def end(self, error: PagewireError) -> None:
        """The engine lets go of this client; its requests end here without another word."""


@dataclass(slots=True)
class EngineCounters:
    """Grow forever."""

    num_steps: int = 0
    prompt_tokens: int = 0
    """Of requests whose prompt has been computed to its end."""
    generation_tokens: int = 0
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(ITERATION_TOKENS))
    """By step that gave tokens: those, and the prompts that it computed to their end."""
    num_workers_lost: int = 0
    worker_idle_ns: int = 0
    """How long workers had no step queued though there was work for one."""
    steps: StepTimings = field(default_factory=StepTimings)
    """Sums over all steps."""

    def count_step(
        self, outputs: Mapping[int, EngineCoreOutputs], num_prefilled_tokens: int
    ) -> None:
        """Count a step.

        Args:
            outputs: What it gave, by client.
            num_prefilled_tokens: The scheduler's count after it.
        """
        self.num_steps += 1
        num_new = sum(sum(map(len, client.new_token_ids)) for client in outputs.values())
        self.generation_tokens += num_new
        num_before, self.prompt_tokens = self.prompt_tokens, num_prefilled_tokens
        if num_new:
            self.iteration_tokens.observe(self.prompt_tokens - num_before + num_new)
