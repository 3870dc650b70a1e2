"""One torch.distributed process group, made without torch's global state.

torch's own `init_process_group` knows one world a process; a worker outlives many generations of
its replica, and its tests run several ranks in one process. Everything here moves tensors: nothing
is pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
from torch._C._distributed_c10d import PrefixStore, Store

COLLECTIVE_TIMEOUT = timedelta(seconds=600)
"""As long as a step may take: a rank may come to its part of a step that much later."""


class Work(Protocol):
    """An operation under way."""

    def wait(self) -> bool: ...
    def is_completed(self) -> bool: ...


class ProcessGroup(Protocol):
    """What we use of torch's groups; ranks count within the group."""

    def _allgather_base(self, output: torch.Tensor, part: torch.Tensor) -> Work: ...
    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work: ...
    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work: ...


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A rank's place in one group."""

    name: str
    """Of the group within the replica."""
    rank: int
    size: int


def connect_nccl(store: Store, place: GroupPlace) -> ProcessGroup:
    """Connect to the other ranks of a group whose tensors are on CUDA devices.

    Args:
        store: Of this generation of the replica.
        place: Ours.
    """
    nccl: Any = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = COLLECTIVE_TIMEOUT
    group: ProcessGroup = nccl(PrefixStore(place.name, store), place.rank, place.size, options)
    return group


def connect_gloo(store: Store, place: GroupPlace, host: str) -> ProcessGroup:
    """Connect to the other ranks of a group whose tensors are on CPUs.

    Args:
        store: Of this generation of the replica.
        place: Ours.
        host: Address of this machine that the others reach.
    """
    gloo: Any = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = COLLECTIVE_TIMEOUT
    # Else gloo looks up the machine's own name, which may lead nowhere in a container.
    options._devices = [gloo.create_device(hostname=host)]
    group: ProcessGroup = gloo(PrefixStore(place.name, store), place.rank, place.size, options)
    return group
