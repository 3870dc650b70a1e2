"""Whether weights and a KV cache fit into memory, and what to say when not.

Owns the checks and their messages; `cpu_memory` reads the numbers. Called by the worker when a
model is loaded and when the scheduler asks for a KV cache.
"""

from __future__ import annotations

from pagewire.kit.errors import FailedPreconditionError

MIN_BLOCKS = 2
"""The null block and one that holds tokens."""
REASON = "KV_CACHE_MEMORY"
WEIGHTS_REASON = "WEIGHTS_MEMORY"


def check_available(available_bytes: int, bytes_per_block: int) -> None:
    """Check that at least a smallest KV cache fits.

    Raises:
        FailedPreconditionError: It does not; the message says how much is missing.
    """
    needed_bytes = MIN_BLOCKS * bytes_per_block
    if available_bytes < needed_bytes:
        advice = "set --kv-cache-memory-bytes higher or --block-size lower"
        raise _too_little(needed_bytes, available_bytes, advice)


CPU_ADVICE = "set --quantization int8 or int4, or --dtype bfloat16, or give the worker more memory"
PACKED_ADVICE = "use a file with fewer or smaller weights, or give the worker more memory"
FLOATS_ADVICE = "set --quantization int8 or int4, or give the worker more memory"
CUDA_ADVICE = (
    "set --dtype bfloat16, or --gpu-memory-utilization higher, or --tensor-parallel-size, or use "
    "a device with more memory"
)


def check_weights(needed_bytes: int, free_bytes: int, advice: str = CPU_ADVICE) -> None:
    """Check that weights fit, before memory is taken for them: the kernel would end the process.

    Args:
        needed_bytes: What they take.
        free_bytes: What they may take.
        advice: What helps.

    Raises:
        FailedPreconditionError: They do not; the message says how much is missing.
    """
    if needed_bytes > free_bytes:
        missing_bytes = needed_bytes - free_bytes
        raise FailedPreconditionError(
            f"the weights need {_mib(needed_bytes)} and {_mib(free_bytes)} are available: "
            f"{_mib(missing_bytes)} are missing; {advice}",
            reason=WEIGHTS_REASON,
            metadata={"needed_bytes": str(needed_bytes), "missing_bytes": str(missing_bytes)},
        )


def check_fits(num_blocks: int, bytes_per_block: int, free_bytes: int) -> None:
    """Check that a KV cache of `num_blocks` fits into the memory that is free now.

    Raises:
        FailedPreconditionError: It does not; the message says how much is missing.
    """
    needed_bytes = num_blocks * bytes_per_block
    if needed_bytes > free_bytes:
        raise _too_little(
            needed_bytes,
            free_bytes,
            "set --kv-cache-memory-bytes or --num-gpu-blocks-override lower",
        )


def _too_little(needed_bytes: int, free_bytes: int, advice: str) -> FailedPreconditionError:
    missing_bytes = needed_bytes - free_bytes
    return FailedPreconditionError(
        f"the KV cache needs {_mib(needed_bytes)} and {_mib(free_bytes)} are available: "
        f"{_mib(missing_bytes)} are missing; {advice}, or give the worker more memory",
        reason=REASON,
        metadata={"needed_bytes": str(needed_bytes), "missing_bytes": str(missing_bytes)},
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
