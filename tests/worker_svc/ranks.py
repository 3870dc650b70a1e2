"""Several ranks of one model in one process, each on a thread of its own, over real gloo groups.

Processes would be more like a replica, and a second of imports for each rank: those are in
`tests/e2e`. The ranks share nothing here but the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from worker_svc.grammar_masks import MaskSource, no_masks
from worker_svc.model_runner import ModelRunner
from worker_svc.parallel.groups import ParallelGroups
from worker_svc.parallel.layout import RankLayout
from worker_svc.parallel.rendezvous import connect_store, open_store, wait_for_ranks
from worker_svc.step import ModelRunnerOutput, SchedulerOutput

T = TypeVar("T")
WAIT_S = 60.0


class Ranks:
    """The threads of all ranks, and their groups. Use `joined_ranks`."""

    def __init__(self, tp_size: int, pp_size: int) -> None:
        world_size = tp_size * pp_size
        layouts = [RankLayout(rank, tp_size, pp_size) for rank in range(world_size)]
        self.groups = [ParallelGroups(layout) for layout in layouts]
        self.output_rank = (pp_size - 1) * tp_size
        self._threads = [ThreadPoolExecutor(1, f"rank-{rank}") for rank in range(world_size)]

    def run(self, function: Callable[[int], T]) -> list[T]:
        """`function(rank)` on the thread of every rank at the same time."""
        futures = [thread.submit(function, rank) for rank, thread in enumerate(self._threads)]
        return [future.result(WAIT_S) for future in futures]

    def submit(self, rank: int, function: Callable[[], Any]) -> Any:
        return self._threads[rank].submit(function)

    def join(self) -> None:
        opened = threading.Event()
        found: list[Any] = []

        def join_one(rank: int) -> None:
            if rank == 0:
                store, rendezvous = open_store("127.0.0.1")
                found.append(rendezvous)
                opened.set()
            else:
                assert opened.wait(WAIT_S)
                store = connect_store(found[0])
            groups = self.groups[rank]
            wait_for_ranks(store, groups.layout, threading.Event())
            groups.join(store)
            wait_for_ranks(store, groups.layout, threading.Event())

        self.run(join_one)

    def close(self) -> None:
        for groups, thread in zip(self.groups, self._threads, strict=True):
            groups.leave()
            thread.shutdown(wait=True)


@contextmanager
def joined_ranks(tp_size: int, pp_size: int = 1) -> Iterator[Ranks]:
    ranks = Ranks(tp_size, pp_size)
    try:
        ranks.join()
        yield ranks
    finally:
        ranks.close()


class RanksRunner:
    """All ranks behind the interface of one runner; every rank that samples must say the same."""

    def __init__(self, ranks: Ranks, make_runner: Callable[[ParallelGroups], ModelRunner]) -> None:
        self._ranks = ranks
        self.runners: Sequence[ModelRunner] = ranks.run(
            lambda rank: make_runner(ranks.groups[rank])
        )
        self.info = ranks.run(lambda rank: self.runners[rank].load(lambda phase, fraction: None))

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        self._ranks.run(lambda rank: self.runners[rank].allocate_kv_cache(num_blocks, block_size))

    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        outputs = self._ranks.run(lambda rank: self.runners[rank].execute(scheduler_output, masks))
        answer = outputs[self._ranks.output_rank]
        for output, groups in zip(outputs, self._ranks.groups, strict=True):
            assert list(output.handles) == list(answer.handles)
            if groups.layout.is_last_stage:
                assert list(output.sampled_token_ids) == list(answer.sampled_token_ids)
                assert output.logprobs == answer.logprobs
            else:
                assert not output.sampled_token_ids
        return answer
