"""How many bytes the KV cache may take on a CPU: what is asked for, or a share of what is free.

Owns reading the container's limit and its use. Called by the model runner after weights are loaded,
so that they count as used.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from pagewire.engine_config import CacheConfig
from worker_svc.memory_profile import cpu_kv_bytes

DEFAULT_LIMIT_BYTES = 2**30
"""Most that is taken unasked: enough for many long contexts, and a laptop keeps its memory."""
FREE_SHARE = 0.5
"""Share of what weights and a largest step leave that is taken unasked: others live there too."""
_CGROUP = Path("/sys/fs/cgroup")
# Limit, use, and the key in the statistics of what the kernel gives back before it runs out: file
# pages that were not used lately, such as those of weights that were read. Version 2, then 1.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def available_kv_bytes(cache: CacheConfig, activation_bytes: int = 0, num_workers: int = 1) -> int:
    """Bytes for the KV cache of one worker under `cache`.

    Args:
        cache: What is asked for.
        activation_bytes: What a largest step takes beside weights and KV.
        num_workers: Those that take their share of the free memory at the same time.
    """
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes
    return cpu_kv_bytes(
        free_memory_bytes(),
        activation_bytes * num_workers,
        FREE_SHARE / num_workers,
        DEFAULT_LIMIT_BYTES,
    )


def free_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Memory that a process of this container can still take without swapping."""
    free = _meminfo_available()
    for limit_file, use_file, statistics_file, reclaimable_key in _CGROUP_FILES:
        limit, used = _read_int(cgroup / limit_file), _read_int(cgroup / use_file)
        if limit is not None and used is not None:
            reclaimable = _read_statistic(cgroup / statistics_file, reclaimable_key)
            free = min(free, max(0, limit - used + reclaimable))
    return free


def release_free_memory() -> None:
    """Give memory that was freed back to the kernel; the C library keeps it for later use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable: set --kv-cache-memory-bytes")


def _read_int(path: Path) -> int | None:
    """The number in a cgroup file; None without such a file, or where it says `max`."""
    if not path.is_file():
        return None
    text = path.read_text(encoding="ascii").strip()
    return int(text) if text.isdigit() else None


def _read_statistic(path: Path, key: str) -> int:
    """One number of a cgroup's memory.stat; 0 where it is not given."""
    if path.is_file():
        for line in path.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0
