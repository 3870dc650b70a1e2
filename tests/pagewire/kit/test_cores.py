"""Cores: affinity, cut to the container's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagewire.kit.cores import usable_cores


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("50000 100000", 1), ("10000000 100000", None)]
)
def test_cores_are_cut_to_the_containers_quota(
    tmp_path: Path, text: str, cores: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    expected = len(os.sched_getaffinity(0)) if cores is None else cores
    assert usable_cores(tmp_path) == expected


def test_without_a_quota_all_cores_are_usable(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("50000", 1)])
def test_the_quota_of_cgroup_version_1_counts_too(
    tmp_path: Path, quota: str, cores: int | None
) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    expected = len(os.sched_getaffinity(0)) if cores is None else cores
    assert usable_cores(tmp_path) == expected
