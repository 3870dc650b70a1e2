"""Settings of a simulation: the engine's own flags, the hardware, the workload, the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pagewire.engine_config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    check,
)
from pagewire.v1 import common_pb2
from scheduler_svc.engine_info import make_limits
from scheduler_svc.executor import WorkerFacts
from scheduler_svc.kv_sizing import plan_kv_cache
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.simulate.hardware import GPUS, HardwareConfig
from scheduler_svc.simulate.prompt import VOCAB_SIZE
from scheduler_svc.simulate.step_time import Roofline
from scheduler_svc.simulate.workload import WorkloadConfig
from scheduler_svc.step_pipeline import MAX_STEPS_IN_FLIGHT

RESERVED_BYTES_PER_GPU = 2 * 1024**3
"""Activations, graphs and the runtime's own."""


@dataclass(frozen=True, slots=True)
class SimulateConfig:
    """Run a workload through the scheduler under a virtual clock and report its latencies.

    Decisions are the live engine's; the worker is replaced by a roofline of a GPU and a model.
    """

    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    max_model_len: int | None = 8192
    """Longest request in tokens, prompt and output together."""
    trace: Path | None = None
    """Replay this file instead: a CSV with a header, or JSONL; a line a request with
    arrival_time_s, num_prompt_tokens, num_output_tokens, and maybe shared_prefix_id,
    num_shared_prefix_tokens, priority."""
    num_replicas: int = 1
    """Engines, each with its own GPUs; requests go to them in turn."""
    when_full: Literal["wait", "reject"] = "wait"
    """What becomes of a request that finds the queue full: it stands outside, and its latencies
    count from its arrival, or it is lost."""
    json: Path | None = None
    """Write all figures to this file; - is standard output, in place of the text."""
    plot: Path | None = None
    """Write a picture of the latencies and of the queue to this file (SVG)."""

    def __post_init__(self) -> None:
        replicas = self.num_replicas
        check("num_replicas", replicas, 1 <= replicas <= 1024, "must be 1 to 1024")
        if self.plot is not None:
            check("plot", self.plot, self.plot.suffix.lower() == ".svg", "must end in .svg")

    @property
    def max_steps_in_flight(self) -> int:
        """As the live engine's loop has it."""
        return MAX_STEPS_IN_FLIGHT if self.scheduler.async_scheduling else 1

    def limits(self) -> SchedulerLimits:
        """The numbers that a live engine would go by on this hardware.

        Raises:
            PagewireError: The model or one request does not fit.
        """
        config = EngineConfig(
            model=ModelConfig(max_model_len=self.max_model_len),
            cache=self.cache,
            scheduler=self.scheduler,
        )
        facts = self._worker_facts()
        return make_limits(config, facts, plan_kv_cache(config, facts))

    def _worker_facts(self) -> WorkerFacts:
        hardware, roofline = self.hardware, Roofline(self.hardware)
        memory_bytes = GPUS[hardware.gpu].memory_bytes * hardware.num_gpus
        available_bytes = self.cache.kv_cache_memory_bytes
        if available_bytes is None:
            usable_bytes = memory_bytes * self.cache.gpu_memory_utilization
            reserved_bytes = RESERVED_BYTES_PER_GPU * hardware.num_gpus
            available_bytes = int(usable_bytes - roofline.weight_bytes - reserved_bytes)
        return WorkerFacts(
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=hardware.model_shape.max_position_embeddings,
            eos_token_ids=frozenset(),
            available_kv_cache_bytes=max(available_bytes, 0),
            bytes_per_block=int(roofline.kv_bytes_per_token * self.cache.block_size),
            weights_digest="",
            dtype="bfloat16",
            sampler_version="",
            model_info=common_pb2.ModelInfo(),
        )
