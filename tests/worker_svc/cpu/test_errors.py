"""What goes wrong in C++ is an exception in Python, and the process goes on."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from worker_svc.cpu.build import SOURCES
from worker_svc.cpu.kernels import ERRORS, KernelError, Kernels, Status, declare

TOO_LITTLE_MEMORY = """
import ctypes, resource
from worker_svc.cpu.kernels import Pool, load_library, variants
from worker_svc.cpu.structs import Cache, Matrix, Model, Step

library = load_library()
kernels = next(kernels for kernels in variants(library) if kernels.name == NAME)
pool = Pool(kernels, 2)
sizes = dict(num_heads=1, num_kv_heads=1, head_dim=16, hidden_size=32, intermediate_size=32)
plan = library.pw_plan_create(kernels.handle, pool.handle, ctypes.byref(Model(**sizes)))
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 2**25
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
MOST = 2**31 - 1

def fails(call, *arguments):
    try:
        call(*arguments)
    except MemoryError as error:
        assert call.__name__ in str(error)
        return
    raise SystemExit(f"{call.__name__} had memory")

wide = Model(**{**sizes, "intermediate_size": 2**30})
fails(library.pw_plan_create, kernels.handle, pool.handle, ctypes.byref(wide))
step, cache = Step(num_tokens=MOST), Cache(num_kv_heads=1, head_dim=2**22, block_size=16)
fails(library.pw_plan_forward, plan, ctypes.byref(cache), ctypes.byref(step), None)
matrix = Matrix(None, 0, 8, 32)
fails(library.pw_linear, kernels.handle, matrix, None, MOST, None, False, None)
of_attention = kernels.handle, pool.handle, ctypes.byref(cache), 0, ctypes.byref(step), 1, 0, 1.0
fails(library.pw_attend, *of_attention, None, None, None, None)

gate, up = (ctypes.c_float * 16)(*[2.0] * 16), (ctypes.c_float * 16)(*[3.0] * 16)
library.pw_swiglu(kernels.handle, gate, up, 16)
assert abs(gate[5] - 5.2848) < 0.001
library.pw_plan_destroy(plan)
print("goes on")
"""


@pytest.fixture(scope="module")
def throwing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A pool in a library of its own, whose pieces throw."""
    path = tmp_path_factory.mktemp("native") / "pool_errors.so"
    sources = [Path(__file__).with_name("pool_errors.cpp"), SOURCES / "pool.cpp"]
    sources.append(SOURCES / "errors.cpp")
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", f"-I{SOURCES}"]
    subprocess.run([*command, *map(str, sources), "-o", str(path)], check=True)
    number = ctypes.c_int32
    signature = Status, (number, number, ctypes.POINTER(number))
    return declare(ctypes.CDLL(str(path)), {**ERRORS, "run_two": signature})


def test_a_kernel_without_memory_raises_and_the_process_goes_on(kernels: Kernels) -> None:
    code = TOO_LITTLE_MEMORY.replace("NAME", repr(kernels.name))
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.stdout.strip(), result.stderr) == ("goes on", "")


@pytest.mark.parametrize("thread", [0, 1])
@pytest.mark.parametrize(
    ("thrown", "error", "words"),
    [
        (1, MemoryError, "not enough memory"),
        (2, KernelError, "as the test wants"),
        (3, KernelError, "of an unknown kind"),
    ],
)
def test_what_a_piece_throws_on_any_thread_is_raised_once_all_have_ended(
    throwing: Any, thread: int, thrown: int, error: type[Exception], words: str
) -> None:
    done = ctypes.c_int32()
    with pytest.raises(error, match=words):
        throwing.run_two(thread, thrown, ctypes.byref(done))
    assert done.value == 3  # the other one, and both of the next work


def test_work_that_throws_nothing_raises_nothing(throwing: Any) -> None:
    done = ctypes.c_int32()
    throwing.run_two(0, 0, ctypes.byref(done))
    assert done.value == 2
