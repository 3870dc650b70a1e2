"""What the ranks of a replica say to each other while they compute; tensors only, on one thread.

Owns the process groups and the sends under way. Ranks that share layers add up and gather; stages
pass hidden states on, and the last one hands sampled tokens back. Layers keep this object for as
long as they live, while the process groups come and go with the generations of the replica.

What is added up is added in the order of ranks, wherever it lies in the batch: a ring all-reduce
adds in an order that depends on the place, so that a row's numbers would depend on its neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch._C._distributed_c10d import Store

from worker_svc.parallel.layout import ONE_RANK, RankLayout
from worker_svc.parallel.process_group import (
    GroupPlace,
    ProcessGroup,
    Work,
    connect_gloo,
    connect_nccl,
)

MAX_PENDING_SENDS = 64
"""More than the steps that may be in flight, with hidden states and tokens of each."""
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1"})
_HIDDEN_TAG, _TOKENS_TAG = 1, 2


class ParallelGroups:
    """The groups of one rank. `join` before the first step, `leave` after the last."""

    def __init__(self, layout: RankLayout, host: str = "127.0.0.1") -> None:
        """Prepare.

        Args:
            layout: This rank's place.
            host: Address of this machine that the others reach.
        """
        self.layout = layout
        self.device = torch.device("cpu")
        """Where the tensors of steps are; set before `join`."""
        self._host = host
        self._sampled: ProcessGroup | None = None
        """For sampled tokens, which are on the host whatever the device."""
        self._tensor: ProcessGroup | None = None
        self._pipeline: ProcessGroup | None = None
        self._pending: deque[tuple[Work, torch.Tensor]] = deque()
        self._rehearses = False

    @property
    def num_ranks_here(self) -> int:
        """Ranks that share this machine: all, or this one alone as far as it knows."""
        return self.layout.world_size if self._host in LOOPBACK_HOSTS else 1

    def join(self, store: Store) -> None:
        """Connect to the other ranks, which do the same now.

        Args:
            store: Of this generation of the replica.
        """
        layout = self.layout
        if layout.tp_size > 1:
            place = GroupPlace(f"tensor/{layout.stage}", layout.tp_rank, layout.tp_size)
            self._tensor = self._connect(store, place)
        if layout.pp_size > 1:
            place = GroupPlace(f"pipeline/{layout.tp_rank}", layout.stage, layout.pp_size)
            self._pipeline = self._sampled = self._connect(store, place)
            if self.device.type != "cpu":
                # NCCL knows no tags: tokens would wait behind hidden states of later steps.
                tokens = replace(place, name=f"tokens/{layout.tp_rank}")
                self._sampled = connect_gloo(store, tokens, self._host)

    def leave(self) -> None:
        """Close the connections: ranks that wait for this one get an error. Idempotent."""
        self._tensor = self._pipeline = self._sampled = None
        self._pending.clear()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Let this rank compute alone: numbers that mean nothing, in the shapes that steps have.

        For measuring what a step takes, while others still load.
        """
        self._rehearses = True
        try:
            yield
        finally:
            self._rehearses = False

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `part`, which have one shape."""
        gathered = self._gather(part)
        total = gathered[0]
        for other in gathered[1:]:
            total = total + other
        return total

    def gather_columns(self, part: torch.Tensor) -> torch.Tensor:
        """The columns of all ranks side by side: [n, k] of each to [n, tp_size * k]."""
        return self._gather(part).transpose(0, 1).flatten(1)

    def send_hidden(self, hidden: torch.Tensor) -> None:
        """Hand hidden states to the next stage; does not wait until it takes them."""
        self._send(self._pipeline, hidden.contiguous(), self.layout.stage + 1, _HIDDEN_TAG)

    def receive_hidden(self, num_tokens: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Hidden states [num_tokens, size] of the stage before."""
        hidden = torch.empty(num_tokens, size, dtype=dtype, device=self.device)
        self._receive(self._pipeline, hidden, self.layout.stage - 1, _HIDDEN_TAG)
        return hidden

    def send_tokens(self, columns: torch.Tensor) -> None:
        """From the last stage: hand int64 `columns` to every stage before it."""
        for stage in range(self.layout.pp_size - 1):
            self._send(self._sampled, columns, stage, _TOKENS_TAG)

    def receive_tokens(self, size: int) -> torch.Tensor:
        """The next int64 columns [size] of the last stage, in the order in which it sent them."""
        columns = torch.empty(size, dtype=torch.int64)
        self._receive(self._sampled, columns, self.layout.pp_size - 1, _TOKENS_TAG)
        return columns

    def _gather(self, part: torch.Tensor) -> torch.Tensor:
        """What all ranks have: [tp_size, *part.shape]."""
        size = self.layout.tp_size
        gathered = part.new_empty((size * part.shape[0], *part.shape[1:]))
        if self._rehearses:
            return gathered.view(size, *part.shape).copy_(part)
        _joined(self._tensor)._allgather_base(gathered, part.contiguous()).wait()
        return gathered.view(size, *part.shape)

    def _connect(self, store: Store, place: GroupPlace) -> ProcessGroup:
        if self.device.type == "cpu":
            return connect_gloo(store, place, self._host)
        return connect_nccl(store, place)

    def _send(self, group: ProcessGroup | None, tensor: torch.Tensor, stage: int, tag: int) -> None:
        if self._rehearses:
            return
        # The tensor must live until it is taken.
        self._pending.append((_joined(group).send([tensor], stage, tag), tensor))
        while self._pending[0][0].is_completed() or len(self._pending) > MAX_PENDING_SENDS:
            self._pending.popleft()[0].wait()
            if not self._pending:
                return

    def _receive(
        self, group: ProcessGroup | None, tensor: torch.Tensor, stage: int, tag: int
    ) -> None:
        if self._rehearses:
            tensor.zero_()
        else:
            _joined(group).recv([tensor], stage, tag).wait()


ALONE = ParallelGroups(ONE_RANK)
"""The groups of a replica of one rank: it talks to nobody."""


def _joined(group: ProcessGroup | None) -> ProcessGroup:
    if group is None:
        raise RuntimeError("this rank is in no group: the replica it belonged to has ended")
    return group
