"""One torch.distributed process group, made without torch's global state.

torch's own `init_process_group` knows one world a process; a worker outlives many generations of
its replica, and its tests run several ranks in one process. Everything here moves tensors: nothing
is pickled.
"""

from __future__ import annotations

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


def connect(store: Store, name: str, rank: int, size: int, host: str) -> ProcessGroup:
    """Connect to the other ranks of a group, which call this at the same time.

    Args:
        store: Of this generation of the replica.
        name: Of the group within the replica.
        rank: Ours, within the group.
        size: Number of ranks.
        host: Address of this machine that the others reach.
    """
    gloo: Any = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = COLLECTIVE_TIMEOUT
    # Else gloo looks up the machine's own name, which may lead nowhere in a container.
    options._devices = [gloo.create_device(hostname=host)]
    group: ProcessGroup = gloo(PrefixStore(name, store), rank, size, options)
    return group
