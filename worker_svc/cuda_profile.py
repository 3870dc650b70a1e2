"""What a largest step and the graphs of a model take on a CUDA device, by running them.

A step of full size is quick there, so nothing is extrapolated but the number of graphs. Leaves no
KV cache behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

from pagewire.engine_config import EngineConfig
from worker_svc.activation_profile import sample_dummy
from worker_svc.dummy_steps import DummyRow, DummySteps
from worker_svc.loaded_model import LoadedModel
from worker_svc.memory_profile import LargestStep
from worker_svc.step import ProgressCallback

_NUM_BLOCKS = 8
"""Of the dummy cache."""


@torch.inference_mode()
def largest_step(
    model: LoadedModel, largest: LargestStep, block_size: int, *, samples: bool
) -> int:
    """Most bytes that a step allocates at once, beside weights and KV.

    Args:
        model: Loaded, without a KV cache.
        largest: Sizes of that step.
        block_size: Tokens in a KV block.
        samples: Whether it computes logits: not on a pipeline stage before the last.
    """
    limit = model.info.max_model_len
    steps = DummySteps(
        num_blocks=_NUM_BLOCKS, block_size=block_size, max_model_len=limit, min_tokens=1
    )
    with _dummy_cache(model, block_size):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        # As few rows as there can be, each at the end of the longest sequence.
        hidden = model.forward(steps.make(list(_long_rows(largest.num_tokens, limit))).inputs)
        if samples:
            dummy = steps.make([DummyRow(1, 0)] * largest.num_logits)
            sample_dummy(model, dummy, hidden[: largest.num_logits])
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def graph_bytes(model: LoadedModel, config: EngineConfig, progress: ProgressCallback) -> int:
    """Bytes that recording the model's graphs takes; 0 where none are recorded.

    Two are recorded. The first has the memory that all share, the second shows what one more takes.
    """
    if model.make_graph_backend is None:
        return 0
    block_size = config.cache.block_size
    sizes = model.graph_sizes(config.scheduler.max_num_seqs, block_size)
    progress("profile_graphs", 0.0)
    with _dummy_cache(model, block_size):
        runner = model.make_graphs(sizes)
        free = [_free_bytes()]
        for size in sizes.falling()[:2]:
            runner.record(size, model.backend)
            free.append(_free_bytes())
        first, *others = (before - after for before, after in pairwise(free))
        return first + (len(sizes) - 1) * max([0, *others])


def _long_rows(num_tokens: int, max_model_len: int) -> Iterator[DummyRow]:
    while num_tokens > 0:
        length = min(num_tokens, max_model_len)
        yield DummyRow(length, max_model_len - length)
        num_tokens -= length


@contextmanager
def _dummy_cache(model: LoadedModel, block_size: int) -> Iterator[None]:
    model.backend.allocate_kv_cache(_NUM_BLOCKS, block_size)
    try:
        yield
    finally:
        model.backend.free_kv_cache()


def _free_bytes() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]
