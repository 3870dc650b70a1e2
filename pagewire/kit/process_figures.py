"""What this process uses and how it fares, sampled every 2 s: memory, CPU, waits for a core, lag.

`ProcessSampler.run` is one task of the service's server; heartbeats carry what it saw last, so that
nobody has to ask. It reads Linux's /proc, in a thread, and knows nothing of what the process does:
whoever has threads that do the work says how long they have worked.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from pagewire import __version__
from pagewire.kit.busy_meter import BusyMeter
from pagewire.kit.cores import usable_cores
from pagewire.kit.loop_lag import Lag
from pagewire.kit.run_queue import RunQueueWait
from pagewire.v1 import common_pb2

SAMPLE_INTERVAL_S = 2.0

_PROC = Path("/proc")
_STARTED_NS = time.monotonic_ns()


@dataclass(frozen=True, slots=True)
class Work:
    """What the threads did that do what the process is for."""

    num_threads: int = 0
    busy_ns: int = 0
    """Grows forever; summed over the threads."""
    num_items: int = 0
    """Pieces of work that run or wait now."""

    @classmethod
    def of(cls, busy: BusyMeter, num_items: int) -> Work:
        """Return what the meter says, and so many pieces of work."""
        return cls(busy.num_threads, busy.busy_ns(), num_items)


class ProcessSampler:
    """Belongs to one event loop; `run` is its only task.

    Attributes:
        figures: What was seen last; None before the first look.
        work: Tells of the threads that work; none by default.
        num_rpcs: Tells how many RPCs have ended.
    """

    def __init__(
        self,
        lag: Callable[[], Lag],
        num_rpcs: Callable[[], int] = lambda: 0,
        *,
        proc: Path = _PROC,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare.

        Args:
            lag: Gives the event loop's lag since it was asked last.
            num_rpcs: Gives a count.
            proc: Where the kernel tells of processes.
            sleep: Returns after so many seconds.
        """
        self.figures: common_pb2.ProcessFigures | None = None
        self.work: Callable[[], Work] = Work
        self._lag = lag
        self._num_rpcs = num_rpcs
        self._proc = proc
        self._sleep = sleep
        self._run_queue = RunQueueWait(proc / "self" / "task")
        self._machine = machine_name(proc)

    def latest(self) -> common_pb2.ProcessFigures | None:
        """Return what was seen last; None before the first look."""
        return self.figures

    async def run(self) -> None:
        """Look every `SAMPLE_INTERVAL_S` until cancelled."""
        while True:
            lag, work = self._lag(), self.work()
            self.figures = await asyncio.to_thread(self._read, lag, work)
            await self._sleep(SAMPLE_INTERVAL_S)

    def _read(self, lag: Lag, work: Work) -> common_pb2.ProcessFigures:
        return common_pb2.ProcessFigures(
            version=__version__,
            machine=self._machine,
            num_cpus=usable_cores(),
            uptime_ns=time.monotonic_ns() - _STARTED_NS,
            rss_bytes=self._rss_bytes(),
            cpu_ns=time.process_time_ns(),
            run_queue_wait_ns=self._run_queue.read_ns(),
            loop_lag_max_ns=lag.max_ns,
            loop_lag_mean_ns=lag.mean_ns,
            num_rpcs=self._num_rpcs(),
            num_work_threads=work.num_threads,
            work_ns=work.busy_ns,
            num_work_items=work.num_items,
        )

    def _rss_bytes(self) -> int:
        try:
            pages = int((self._proc / "self" / "statm").read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGESIZE")


def machine_name(proc: Path = _PROC) -> str:
    """Return a name that all processes of this machine, and no others, have; empty: none is known.

    Containers of one machine share its kernel, whose start has an id. It is hashed, since it is
    nobody's business.
    """
    try:
        boot_id = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    return hashlib.sha256(f"pagewire {boot_id}".encode()).hexdigest()[:12]
