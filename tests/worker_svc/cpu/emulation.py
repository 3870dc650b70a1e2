"""Builds the kernels with the instructions of AVX-512 and AMX in plain C++, of `emulated/`.

So every variant runs on a processor that has AVX2 alone: slowly, but with the bits and, for tiles,
the faults of a processor that has them all.
"""

from __future__ import annotations

import ctypes
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from worker_svc.cpu.build import SOURCES, sources_digest
from worker_svc.cpu.kernels import load_library

EMULATED = Path(__file__).parent / "emulated"
_COMPILE = (
    *("g++", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"),
    *("-O1", "-ffp-contract=off"),
    *("-mavx2", "-mfma", "-mf16c"),
    # How vectors of 64 bytes are passed depends on flags, which are the same for all files here.
    *("-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Werror"),
    *(f"-I{EMULATED}", f"-I{SOURCES}"),
)


def build_emulated(folder: Path) -> Any:
    """The library, loaded; `emulated_products` and `emulated_shaped` count tiles."""
    sources = [path for path in SOURCES.glob("*.cpp") if path.name != "processor.cpp"]
    sources.append(EMULATED / "processor.cpp")
    # The longest ones first.
    sources.sort(key=lambda path: not path.name.startswith("kernels_"))
    with ThreadPoolExecutor(max_workers=2) as compilers:
        objects = list(compilers.map(lambda source: _compile(source, folder), sources))
    path = folder / "emulated.so"
    command = ["g++", "-shared", "-pthread", *map(str, objects), "-o", str(path)]
    subprocess.run(command, check=True)
    library = load_library(path)
    assert library is not None
    for name in ("emulated_products", "emulated_shaped"):
        getattr(library, name).restype = ctypes.c_int64
    return library


def _compile(source: Path, folder: Path) -> Path:
    out = folder / f"{source.stem}.o"
    digest = f'-DPAGEWIRE_SOURCES="{sources_digest()}"'
    subprocess.run([*_COMPILE, digest, "-c", str(source), "-o", str(out)], check=True)
    return out
