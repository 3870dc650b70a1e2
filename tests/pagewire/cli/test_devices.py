"""Devices of a machine, divided among replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.cli.devices import count_cuda_devices, devices_of_replica
from pagewire.kit.config import ConfigError


@pytest.mark.parametrize(
    ("given", "num_devices", "expected"),
    [
        ("3,5,7,9", 0, ["3,5", "7,9"]),
        (None, 5, ["0,1", "2,3"]),
        (None, 0, [None, None]),
        ("", 4, [None, None]),
        ("-1", 4, [None, None]),
        ("3, 5,7,9,-1,2", 0, ["3,5", "7,9"]),
    ],
)
def test_each_replica_gets_the_next_devices(given, num_devices, expected):
    assert [
        devices_of_replica(replica, 2, 2, given, lambda: num_devices) for replica in (0, 1)
    ] == expected


@pytest.mark.parametrize(("given", "num_devices"), [("0", 8), (None, 3), ("4,5,6,-1,7", 8)])
def test_too_few_devices_are_told_before_anything_starts(given, num_devices):
    with pytest.raises(ConfigError, match="needs 4 CUDA devices"):
        devices_of_replica(0, 2, 2, given, lambda: num_devices)


def test_devices_are_counted_by_their_files(tmp_path: Path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert count_cuda_devices(tmp_path) == 2
