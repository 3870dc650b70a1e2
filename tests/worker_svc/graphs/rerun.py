"""Graphs without a device that records: the work is done again at each replay."""

from __future__ import annotations

from collections.abc import Callable

import torch

from worker_svc.graphs.runner import Replay


class RerunBackend:
    """All but the recording: the same work on the same memory."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replayed = 0

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        self.num_recorded += 1
        work()

        def replay() -> torch.Tensor:
            self.num_replayed += 1
            return work()

        return replay
