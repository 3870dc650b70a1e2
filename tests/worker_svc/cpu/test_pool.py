from __future__ import annotations

import subprocess
import sys

from worker_svc.cpu.kernels import Kernels

NOT_AT_THE_END = """
from types import SimpleNamespace
from worker_svc.cpu.kernels import Kernels, Pool

library = SimpleNamespace(pw_pool_create=lambda n: n, pw_pool_destroy=print)
gone, stays = (Pool(Kernels(library, 1, "fake", 8), n) for n in (5, 6))
del gone
"""
FEW_THREADS = """
import resource
from worker_svc.cpu.kernels import load_library

library = load_library()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 2**25
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
pool = library.pw_pool_create(1000)
print(bool(pool))
library.pw_pool_destroy(pool)
"""


def output_of(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_threads_end_with_their_pool_and_not_with_a_process_whose_step_may_run() -> None:
    assert output_of(NOT_AT_THE_END) == "5"


def test_threads_that_cannot_be_had_are_done_without(kernels: Kernels) -> None:
    assert output_of(FEW_THREADS) == "True"
