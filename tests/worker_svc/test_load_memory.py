"""Loading takes what is kept and one tensor: never the checkpoint twice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "megabytes", [pytest.param(96), pytest.param(1100, marks=pytest.mark.slow)]
)
def test_a_load_takes_little_more_than_what_it_keeps(megabytes: int) -> None:
    command = [sys.executable, "-m", "tests.worker_svc.load_memory", str(megabytes)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["kept"] > 0.8e6 * megabytes
    assert found["peak"] > 0.9 * found["kept"], found
    assert found["peak"] < 1.2 * found["kept"] + found["largest"], found
