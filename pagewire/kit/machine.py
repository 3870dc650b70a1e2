"""What a measurement was taken on, in words."""

from __future__ import annotations

import os
import platform


def describe_machine() -> str:
    """Return processor, cores that this process may use, and kernel."""
    cores = len(os.sched_getaffinity(0))
    return f"{_processor()}, {cores} cores, {platform.system()} {platform.release()}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the architecture has to do
    return platform.processor() or platform.machine()
