"""The memory of a CUDA device: what is free, what a largest step and graphs take, what is left.

vLLM's rules: of the device's memory a share may be used; what weights, the peak of a largest step,
graphs, and libraries beside PyTorch's allocator take is measured; the KV cache gets the rest. The
arithmetic is `memory_profile`'s. Called by the model runner on the device thread.
"""

from __future__ import annotations

import gc

import torch

from pagewire.engine_config import EngineConfig
from pagewire.kit.logs import get_logger
from worker_svc.cuda_profile import graph_bytes, largest_step
from worker_svc.loaded_model import LoadedModel
from worker_svc.memory import check_fits
from worker_svc.memory_profile import LargestStep, cuda_kv_bytes, cuda_requested_bytes
from worker_svc.parallel.groups import ParallelGroups
from worker_svc.step import ProgressCallback

log = get_logger("worker_svc.cuda_memory")


class CudaBudget:
    """A share of the device; made before anything is loaded."""

    def __init__(self, config: EngineConfig, groups: ParallelGroups, device: torch.device) -> None:
        """See what is free.

        Raises:
            FailedPreconditionError: Less than --gpu-memory-utilization asks for.
        """
        self._config = config
        self._groups = groups
        self._device = device
        release_cuda_memory()
        self._allocated_before = torch.cuda.memory_allocated(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        cache = config.cache
        self._is_sized = cache.kv_cache_memory_bytes is not None
        self._requested_bytes = free_bytes
        if not self._is_sized:
            self._requested_bytes = cuda_requested_bytes(
                total_bytes, free_bytes, cache.gpu_memory_utilization
            )
        self._other_before = self._other_bytes()
        self._kv_bytes = cache.kv_cache_memory_bytes

    def weight_limit(self) -> int:
        return self._requested_bytes - self._own_bytes()

    def measure(self, model: LoadedModel, progress: ProgressCallback) -> None:
        if self._kv_bytes is not None:
            return
        weight_bytes = self._own_bytes()
        progress("profile_memory", 0.0)
        with self._groups.rehearsing():
            peak_bytes = largest_step(
                model,
                LargestStep.of(self._config),
                self._config.cache.block_size,
                samples=self._groups.layout.is_last_stage,
            )
        release_cuda_memory()
        other_bytes = max(0, self._other_bytes() - self._other_before)
        recorded_bytes = graph_bytes(model, self._config, progress)
        release_cuda_memory()
        self._kv_bytes = cuda_kv_bytes(
            self._requested_bytes, weight_bytes, peak_bytes, other_bytes + recorded_bytes
        )
        log.info(
            "cuda_memory",
            requested_bytes=self._requested_bytes,
            weight_bytes=weight_bytes,
            peak_activation_bytes=peak_bytes,
            other_bytes=other_bytes,
            graph_bytes=recorded_bytes,
            kv_cache_bytes=self._kv_bytes,
        )

    def kv_bytes(self) -> int:
        if self._kv_bytes is None:
            raise RuntimeError("measure comes first")
        return self._kv_bytes

    def check_kv_cache(self, num_blocks: int, bytes_per_block: int) -> None:
        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        unused_bytes = reserved - torch.cuda.memory_allocated(self._device)
        check_fits(num_blocks, bytes_per_block, free_bytes + unused_bytes)

    def release(self) -> None:
        release_cuda_memory()

    def _own_bytes(self) -> int:
        """What this runner's tensors take."""
        return torch.cuda.memory_allocated(self._device) - self._allocated_before

    def _other_bytes(self) -> int:
        """In use on the device beside PyTorch's allocator, by whomever."""
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        return total_bytes - free_bytes - torch.cuda.memory_reserved(self._device)


def release_cuda_memory() -> None:
    """Give the device what no tensor holds any more."""
    gc.collect()  # modules and graphs may point at each other
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # tens of MiB for each stream
    torch.cuda.empty_cache()
