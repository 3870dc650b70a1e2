from __future__ import annotations

import os
import subprocess
import sys


def python(code: str, **env: str) -> list[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MKL_")}
    inherited.pop("OMP_WAIT_POLICY", None)
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return result.stdout.split()


PREPARE = """
import os, sys
from worker_svc.torch_runtime import prepare_environment
prepare_environment()
print(os.environ["MKL_CBWR"], os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
"""


def test_the_environment_is_prepared_before_torch_is_imported() -> None:
    cbwr, wait_policy, torch_imported = python(PREPARE)
    assert cbwr in ("AVX512,STRICT", "AVX2,STRICT")
    assert (wait_policy, torch_imported) == ("passive", "False")


def test_what_is_set_already_stays() -> None:
    assert python(PREPARE, MKL_CBWR="AVX2", OMP_WAIT_POLICY="active")[:2] == ["AVX2", "active"]
