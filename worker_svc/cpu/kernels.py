"""The compiled kernels in this process: found, loaded, checked, with the best variant chosen.

Owns the search for the library and its one warning, the threads that kernels run on, and what a
call that fails raises: `MemoryError` or `KernelError`. Knows no models. Used on the device thread;
a call gives the GIL up until it returns.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.kit.logs import get_logger
from worker_svc.cpu.build import LIBRARY, is_supported, library_digest, sources_digest
from worker_svc.cpu.structs import Address, Cache, Largest, Matrix, Model, Step

log = get_logger("worker_svc.cpu")

NUM_VARIANTS = 3
ARITHMETIC = 2
"""Goes up with every change that gives other numbers: no engine goes on with another's tokens."""
_INT, _LONG, _FLOAT, _BOOL = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_bool
_POINTER = ctypes.POINTER


class Status(ctypes.c_int32):
    """What a function gives that makes nothing; 0: it is done."""


_OUT_OF_MEMORY = 1
ERRORS: dict[str, tuple[Any, Sequence[Any]]] = {
    "pw_status": (_INT, ()),
    "pw_error": (ctypes.c_char_p, ()),
}
"""Functions that tell of the last failure on a thread."""
_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    **ERRORS,
    "pw_kernels": (Address, (_INT,)),
    "pw_name": (ctypes.c_char_p, (Address,)),
    "pw_lanes": (_INT, (Address,)),
    "pw_packed_bytes": (_LONG, (Address, _INT, _INT, _INT)),
    "pw_pack": (Status, (Address, _INT, Address, Matrix, Address)),
    "pw_pool_create": (Address, (_INT,)),
    "pw_pool_destroy": (None, (Address,)),
    "pw_plan_create": (Address, (Address, Address, _POINTER(Model))),
    "pw_plan_destroy": (None, (Address,)),
    "pw_plan_forward": (Status, (Address, _POINTER(Cache), _POINTER(Step), Address)),
    "pw_plan_logits": (Status, (Address, Address, _INT, Address)),
    "pw_plan_greedy": (Status, (Address, Address, _INT, Address, Address)),
    "pw_unpack_row": (Status, (Address, Matrix, _INT, Address)),
    "pw_linear": (Status, (Address, Matrix, Address, _INT, Address, _BOOL, Address)),
    "pw_take_largest": (Status, (Address, Address, _INT, _INT, _POINTER(Largest))),
    "pw_rms_norm": (Status, (Address, Address, Address, _FLOAT, _INT, Address)),
    "pw_swiglu": (Status, (Address, Address, Address, _INT)),
    "pw_rotate": (Status, (Address, Address, _INT, _INT, Address, Address)),
    "pw_attend": (
        Status,
        (
            *(Address, Address, _POINTER(Cache), _INT, _POINTER(Step), _INT, _INT, _FLOAT),
            *(Address, Address, Address, Address),
        ),
    ),
}
_MAKERS = ("pw_pool_create", "pw_plan_create")
"""Null where they fail."""


class KernelError(RuntimeError):
    """A call to the kernels failed; whatever it was to write means nothing."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """One variant of the kernels."""

    native: Any
    """The C functions of the loaded library, of all variants."""
    handle: int
    name: str
    lanes: int
    """Rows of a matrix that lie side by side."""


class Pool:
    """Threads of the kernels; they end with it."""

    def __init__(self, kernels: Kernels, num_threads: int) -> None:
        """Start them.

        Raises:
            MemoryError: There is none for them.
        """
        self.num_threads = num_threads
        handle = kernels.native.pw_pool_create(num_threads)
        self.handle: int = handle
        release_with(self, kernels.native.pw_pool_destroy, handle)


def release_with(owner: object, release: Callable[[int], None], handle: int) -> None:
    """Calls `release` once `owner` is gone, but not at the process's end: a step may still run."""
    weakref.finalize(owner, release, handle).atexit = False


@functools.cache
def load_library(path: Path = LIBRARY) -> Any | None:
    """The library, or None, with one warning, where there is none that fits the sources."""
    if not is_supported():
        log.info("cpu_kernels_missing", reason="there are none for this kind of processor")
        return None
    problem = "they are not built"
    if path.is_file():
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            problem = f"they cannot be loaded ({error})"
        else:
            if library_digest(library) == sources_digest():
                return declare(library, _SIGNATURES)
            problem = "they were built from other sources"
    log.warning("cpu_kernels_missing", reason=problem, fix="python -m worker_svc.cpu.build")
    return None


def variants(library: Any) -> list[Kernels]:
    """What this processor can run, best first."""
    handles = (library.pw_kernels(place) for place in range(NUM_VARIANTS))
    return [
        Kernels(library, handle, library.pw_name(handle).decode(), library.pw_lanes(handle))
        for handle in handles
        if handle
    ]


def declare(library: Any, signatures: Mapping[str, tuple[Any, Sequence[Any]]]) -> Any:
    """Give the library's functions their types, and errors to those that may fail.

    Args:
        library: With `pw_status` and `pw_error`.
        signatures: Result and arguments of each function.
    """

    def raise_failure(name: str) -> None:
        if library.pw_status() == _OUT_OF_MEMORY:
            raise MemoryError(f"the CPU kernels had not enough memory ({name})")
        raise KernelError(f"the CPU kernels failed ({name}): {library.pw_error().decode()}")

    def check_status(status: Status, function: Any, _: object) -> None:
        if status.value:
            raise_failure(function.__name__)

    def check_made(handle: int | None, function: Any, _: object) -> int | None:
        if not handle:
            raise_failure(function.__name__)
        return handle

    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        if result is Status:
            function.errcheck = check_status
        elif name in _MAKERS:
            function.errcheck = check_made
    return library
