"""How much of its device a runner may use: on a CPU here, on CUDA in `cuda_memory`.

Owns what was measured of a model, and the answer to how large its KV cache may be. Knows no lease
and no scheduler. Called by the model runner on the device thread.
"""

from __future__ import annotations

from typing import Protocol

from pagewire.engine_config import EngineConfig
from worker_svc.activation_profile import activation_bytes
from worker_svc.cpu_memory import available_kv_bytes, free_memory_bytes
from worker_svc.loaded_model import LoadedModel
from worker_svc.memory_profile import LargestStep
from worker_svc.parallel.groups import ParallelGroups
from worker_svc.step import ProgressCallback


class MemoryBudget(Protocol):
    """The memory of one rank's device."""

    def weight_limit(self) -> int:
        """Bytes that weights may take now."""

    def measure(self, model: LoadedModel, progress: ProgressCallback) -> None:
        """See what a largest step takes, unless that is known or not asked for.

        Args:
            model: Just loaded, without a KV cache.
            progress: Called with ("profile_memory", 0).
        """

    def kv_bytes(self) -> int:
        """Bytes that may go to the KV cache."""

    def check_kv_cache(self, num_blocks: int, bytes_per_block: int) -> None:
        """Check that a KV cache fits into what is free now.

        Raises:
            FailedPreconditionError: It does not.
        """

    def release(self) -> None:
        """Give back what was freed."""


class CpuBudget:
    """A share of what the container leaves."""

    def __init__(self, config: EngineConfig, groups: ParallelGroups) -> None:
        self._config = config
        self._groups = groups
        self._activation_bytes = 0
        """What a largest step takes; 0: not measured."""

    def weight_limit(self) -> int:
        return free_memory_bytes()

    def measure(self, model: LoadedModel, progress: ProgressCallback) -> None:
        if self._activation_bytes or self._config.cache.kv_cache_memory_bytes is not None:
            return
        progress("profile_memory", 0.0)
        # The other ranks may still load, or have measured already.
        with self._groups.rehearsing():
            self._activation_bytes = activation_bytes(
                model,
                LargestStep.of(self._config),
                self._config.cache.block_size,
                model.info.max_model_len,
                samples=self._groups.layout.is_last_stage,
            )

    def kv_bytes(self) -> int:
        num_ranks = self._groups.num_ranks_here
        return available_kv_bytes(self._config.cache, self._activation_bytes, num_ranks)

    def check_kv_cache(self, num_blocks: int, bytes_per_block: int) -> None:
        """The worker has checked it against the container's memory."""

    def release(self) -> None:
        """Nothing: the worker trims its heap."""
