"""Process groups on a CUDA device, as far as one device shows them: a rank alone."""

from __future__ import annotations

import torch

from tests.worker_svc.cuda.devices import CUDA, needs_cuda, of_triton
from worker_svc.parallel.process_group import GroupPlace, connect_nccl

pytestmark = [needs_cuda, of_triton]


def test_nccl_gathers_what_the_only_rank_has() -> None:
    torch.cuda.set_device(CUDA)
    group = connect_nccl(torch.distributed.HashStore(), GroupPlace("tensor/0", 0, 1))
    part = torch.arange(6, device=CUDA, dtype=torch.bfloat16).view(2, 3)
    gathered = torch.empty_like(part)
    group._allgather_base(gathered, part).wait()
    assert torch.equal(gathered, part)
