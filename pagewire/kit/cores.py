"""How many cores a process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may use: its affinity, cut to the container's quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _cpu_quota(cgroup)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _cpu_quota(cgroup: Path) -> float | None:
    """The container's limit in cores (cgroup version 2, then 1); None: none."""
    if (cgroup / "cpu.max").is_file():
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    if (cgroup / "cpu" / "cpu.cfs_quota_us").is_file():
        quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii")
        period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii")
        return None if int(quota) < 0 else int(quota) / int(period)
    return None
