"""The stages of a request's life at which a fault may come, each recognized as it is reached."""

from __future__ import annotations

import signal
from enum import Enum

from pagewire.v1.scheduler_pb2 import WatchLoadResponse
from tests.chaos.checker import wait_for_load
from tests.chaos.load import Load
from tests.chaos.stack import ChaosStack

ENGINE = (
    "--model=smollm2",
    "--device=sim",
    "--sim-step-time-us=20000",
    "--max-num-seqs=8",
    "--max-num-batched-tokens=32",
)
"""Few at a time and prompts in pieces, so that there is time in each stage."""


class Stage(Enum):
    """Where the requests are."""

    ADMISSION = "before admission"
    QUEUED = "queued"
    PREFILL = "in prefill chunks"
    FIRST_TOKEN = "first token"
    DECODE = "mid decode"
    DRAIN = "during a drain"
    END = "at the end"


async def reach(stage: Stage, stack: ChaosStack, load: Load, max_tokens: int) -> int:
    """Wait until the requests, which have just been sent, are there.

    Returns:
        For `DRAIN`, the process id of the scheduler-0 that drains; else 0.
    """
    clients = load.clients
    if stage is Stage.QUEUED:
        await wait_for_load(stack, "scheduler-0", _has_queue)
    elif stage is Stage.PREFILL:
        await wait_for_load(stack, "scheduler-0", lambda load: load.num_requests_running > 0)
    elif stage is Stage.FIRST_TOKEN:
        await load.wait(lambda: any(client.num_tokens for client in clients))
    elif stage is Stage.DECODE:
        await load.wait(lambda: sum(client.num_tokens > max_tokens // 3 for client in clients) > 2)
    elif stage is Stage.DRAIN:
        await load.wait(lambda: any(client.num_tokens for client in clients))
        return stack.signal("scheduler-0", signal.SIGTERM)
    elif stage is Stage.END:
        await load.wait(lambda: any(c.answers or c.num_tokens >= max_tokens - 1 for c in clients))
    return 0


def _has_queue(load: WatchLoadResponse) -> bool:
    return load.num_requests_running > 0 and load.num_requests_waiting > 0
