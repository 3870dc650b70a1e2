"""How much memory is left for the KV cache: arithmetic over what was measured, on any device.

Pure: whoever calls it has measured. On a CUDA device the rules are vLLM's; on a CPU the weights are
in use already when the free memory is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import FailedPreconditionError

REASON = "DEVICE_MEMORY"
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class LargestStep:
    """The sizes that decide what a step takes beside weights and KV."""

    num_tokens: int
    num_logits: int
    """Places that sample: one a request, and one more for each of its drafts."""

    @classmethod
    def of(cls, config: EngineConfig) -> LargestStep:
        """The largest step that a scheduler sends under `config`."""
        num_tokens = config.scheduler.max_num_batched_tokens
        speculative = config.speculative
        drafts = speculative.num_speculative_tokens
        drafts = 0 if speculative.speculative_method == "none" else drafts
        return cls(num_tokens, min(num_tokens, config.scheduler.max_num_seqs * (1 + drafts)))


@dataclass(frozen=True, slots=True)
class PeakAt:
    """Most memory that something of a size took at once."""

    size: int
    num_bytes: int


def extrapolate(peaks: tuple[PeakAt, PeakAt], size: int) -> int:
    """The peak at `size`, on the line through two smaller ones, and never below the second."""
    small, large = peaks
    slope = (large.num_bytes - small.num_bytes) / (large.size - small.size)
    return max(large.num_bytes, math.ceil(large.num_bytes + slope * (size - large.size)))


def cpu_kv_bytes(free_bytes: int, activation_bytes: int, share: float, limit_bytes: int) -> int:
    """Bytes for the KV cache on a CPU, unasked.

    Args:
        free_bytes: What the container can still take, weights loaded.
        activation_bytes: What a largest step takes beside them.
        share: Of the rest.
        limit_bytes: The most that is taken.
    """
    return max(0, min(limit_bytes, int((free_bytes - activation_bytes) * share)))


def cuda_requested_bytes(total_bytes: int, free_bytes: int, utilization: float) -> int:
    """Bytes of a CUDA device that this worker may use, weights and all.

    Args:
        total_bytes: Of the device.
        free_bytes: Before anything is loaded.
        utilization: --gpu-memory-utilization.

    Raises:
        FailedPreconditionError: So much is not free.
    """
    requested_bytes = math.ceil(total_bytes * utilization)
    if free_bytes < requested_bytes:
        raise FailedPreconditionError(
            f"of {_gib(total_bytes)} on the device {_gib(free_bytes)} are free, "
            f"--gpu-memory-utilization {utilization} asks for {_gib(requested_bytes)}: "
            f"{_gib(requested_bytes - free_bytes)} are missing; set it lower, or end what else "
            "uses the device",
            reason=REASON,
            metadata={"missing_bytes": str(requested_bytes - free_bytes)},
        )
    return requested_bytes


def cuda_kv_bytes(
    requested_bytes: int, weight_bytes: int, peak_bytes: int, other_bytes: int
) -> int:
    """Bytes for the KV cache on a CUDA device.

    Args:
        requested_bytes: See `cuda_requested_bytes`.
        weight_bytes: Allocated once the model is loaded.
        peak_bytes: Most that a largest step allocates beside the weights.
        other_bytes: What the device lost meanwhile beside PyTorch's allocator: libraries, graphs.
    """
    return max(0, requested_bytes - weight_bytes - peak_bytes - other_bytes)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
