"""Recording on a CUDA device: the only module that captures a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from worker_svc.graphs.runner import Replay


class CudaGraphBackend:
    """Graphs that share one pool of memory, since they are replayed one after another.

    The pool ends with the last of them: those that come later need another backend.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        """See `GraphBackend`."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), _without_collection():
            # Once before: kernels are compiled and libraries take their memory at a first use.
            work()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = work()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


@contextmanager
def _without_collection() -> Iterator[None]:
    """What the collector frees on the device meanwhile would spoil a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
