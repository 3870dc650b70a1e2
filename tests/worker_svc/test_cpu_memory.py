"""How much memory a KV cache may take, from what the kernel says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.engine_config import CacheConfig
from worker_svc.cpu_memory import DEFAULT_LIMIT_BYTES, available_kv_bytes, free_memory_bytes

VERSION_1 = {
    "memory/memory.limit_in_bytes": "1000000",
    "memory/memory.usage_in_bytes": "400000",
    "memory/memory.stat": "cache 5\ntotal_inactive_file 100000\n",
}
VERSION_2 = {
    "memory.max": "1000000\n",
    "memory.current": "400000\n",
    "memory.stat": "anon 5\ninactive_file 100000\n",
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("files", [VERSION_1, VERSION_2], ids=["version 1", "version 2"])
def test_a_containers_limit_counts_less_what_it_cannot_give_back(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert free_memory_bytes(write(tmp_path, files)) == 700_000


def test_without_a_limit_the_machine_decides(tmp_path: Path) -> None:
    unlimited = free_memory_bytes(write(tmp_path, VERSION_2 | {"memory.max": "max\n"}))
    assert unlimited > 700_000


def test_use_past_the_limit_leaves_nothing(tmp_path: Path) -> None:
    files = VERSION_2 | {"memory.current": "2000000"}
    assert free_memory_bytes(write(tmp_path, files)) == 0


def test_what_is_asked_for_is_what_is_available() -> None:
    assert available_kv_bytes(CacheConfig(kv_cache_memory_bytes=12345)) == 12345


def test_unasked_at_most_half_of_the_free_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_svc.cpu_memory.free_memory_bytes", lambda: 1000)
    assert available_kv_bytes(CacheConfig()) == 500
    monkeypatch.setattr("worker_svc.cpu_memory.free_memory_bytes", lambda: 100 * 2**30)
    assert available_kv_bytes(CacheConfig()) == DEFAULT_LIMIT_BYTES
