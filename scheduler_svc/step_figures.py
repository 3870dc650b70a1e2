"""Figures of steps and of the scheduler, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Where the time of a step went, in nanoseconds; sums where steps were merged."""

    schedule_ns: int = 0
    execute_ns: int = 0
    """From sending the step to its answer; steps that overlap both count."""
    forward_ns: int = 0
    sample_ns: int = 0
    idle_ns: int = 0
    prepare_ns: int = 0
    queue_ns: int = 0
    busy_ns: int = 0
    answered_ns: int = 0
    """When the answer came, on this process's clock; of several steps the last one."""

    def __add__(self, other: StepTimings) -> StepTimings:
        return StepTimings(
            self.schedule_ns + other.schedule_ns,
            self.execute_ns + other.execute_ns,
            self.forward_ns + other.forward_ns,
            self.sample_ns + other.sample_ns,
            self.idle_ns + other.idle_ns,
            self.prepare_ns + other.prepare_ns,
            self.queue_ns + other.queue_ns,
            self.busy_ns + other.busy_ns,
            max(self.answered_ns, other.answered_ns),
        )


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's figures at one moment; counters grow forever."""

    num_requests_running: int
    num_requests_waiting: int
    num_requests_deferred: int
    """Of the waiting ones: those whose grammar is not ready."""
    num_tokens_waiting: int
    """Prompt tokens of waiting requests."""
    kv_cache_usage: float
    """Share of blocks that requests hold, 0 to 1."""
    num_free_blocks: int
    num_blocks: int
    """Null block included."""
    num_preemptions: int
    prefix_cache_queries: int
    """Tokens looked up at admissions."""
    prefix_cache_hits: int
    """Tokens found."""
    num_drafts: int
    """Verifications: one a request and step that had drafts."""
    num_draft_tokens: int
    num_accepted_tokens: int
    """Drafts that were right."""
    num_accepted_tokens_per_pos: Sequence[int]
    """The same by their place among the drafts of a step, as far as any was right."""
