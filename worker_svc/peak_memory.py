"""The most memory that a piece of work holds at once, beside what was there before it.

Counts what PyTorch's allocator gives and takes back, within operators too, and numpy's arrays by
the interpreter's own tracing: the same numbers at each run, which the size of a process never is.
Slow, so for small work. Knows no models. One call at a time.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import accumulate

from torch import autograd
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

_MEMORY_EVENT = "memory_alloc"


def peak_bytes(work: Callable[[], object]) -> int:
    """Run `work` and give its peak: that of tensors plus that of arrays."""
    # The newer profiler writes to standard error, and dispatch modes import a compiler.
    options = ProfilerConfig(
        ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()
    )
    tracemalloc.start()
    autograd._enable_profiler_legacy(options)  # type: ignore[attr-defined]
    try:
        result = work()
    finally:
        threads = autograd._disable_profiler_legacy()  # type: ignore[attr-defined]
        arrays_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    del result
    changes = (
        event.cpu_memory_usage()
        for events in threads
        for event in events
        if str(event.kind()) == _MEMORY_EVENT
    )
    return max(accumulate(changes), default=0) + arrays_peak
