"""Compiles the kernels: `python -m worker_svc.cpu.build`. Part of `make setup`, never of serving.

Owns which file is compiled with which instructions, and the digest of the sources by which the
library is known to be theirs. Without a compiler it says so and ends well: the worker then runs in
plain PyTorch. Imports no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
LIBRARY = Path(__file__).parent / "libpagewire_cpu.so"
DIGEST_FUNCTION = "pw_sources"

_FLAGS = (
    "-std=c++17",
    "-O3",
    # Sums are written as they are meant to be rounded.
    "-ffp-contract=off",
    # It would hold the codes of two groups at once, in more registers than there are.
    "-fno-loop-unroll-and-jam",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    # GCC 12 warns of its own AVX-512 header.
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
)
_FLAGS_OF_GCC = ("-fno-loop-unroll-and-jam",)
"""Those that clang knows nothing of, and refuses."""
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, *(f"-mavx512{name}" for name in ("f", "bw", "dq", "vl", "vnni")))
_AMX = (*_AVX512, "-mamx-tile", "-mamx-int8")
_VARIANT_FLAGS = {
    "kernels_avx2.cpp": _AVX2,
    "kernels_avx512.cpp": _AVX512,
    "kernels_amx.cpp": _AMX,
}
_COMPILE_TIMEOUT_S = 600


def sources_digest(sources: Path = SOURCES) -> str:
    """Hex digest of all files that the library is made of, and of how."""
    digest = hashlib.sha256(repr((_FLAGS, _VARIANT_FLAGS)).encode())
    for path in sorted(sources.glob("*.*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def library_digest(library: ctypes.CDLL) -> str:
    """Digest of the sources that a library was built from."""
    function = getattr(library, DIGEST_FUNCTION)
    function.restype = ctypes.c_char_p
    digest: bytes = function()
    return digest.decode()


def is_supported() -> bool:
    """Whether there are kernels for this kind of processor."""
    return platform.machine() in ("x86_64", "AMD64")


def is_current(library: Path = LIBRARY) -> bool:
    """Whether a library is there and was built from the sources as they are."""
    if not library.is_file():
        return False
    # Not loaded: a library that is replaced later would stay in this process.
    return sources_digest().encode() in library.read_bytes()


def build(library: Path = LIBRARY, compiler: str | None = None) -> str | None:
    """Builds the library, whole or not at all.

    Args:
        library: Where it goes.
        compiler: A C++ compiler, with arguments of its own if there are any ("ccache g++"); None:
            $CXX, else g++, else clang++.

    Returns:
        None, or why there is no library.
    """
    if not is_supported():
        return f"there are no kernels for {platform.machine()}"
    found = compiler or os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not found:
        return "no C++ compiler; on Debian: apt-get install g++"
    try:
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as folder:
            return _build_in(Path(folder), library, shlex.split(found))
    except ValueError as error:
        return f"the compiler {found!r} (CXX) cannot be read: {error}"
    except OSError as error:
        return f"cannot write to {library.parent}: {error.strerror}"


def _build_in(folder: Path, library: Path, compiler: Sequence[str]) -> str | None:
    objects = [(path, folder / f"{path.stem}.o") for path in sorted(SOURCES.glob("*.cpp"))]
    built = folder / library.name
    link = [*compiler, "-shared", "-pthread", *(str(o) for _, o in objects), "-o", str(built)]
    refused = _FLAGS_OF_GCC if _is_clang(compiler) else ()
    problem = _run([*(_compile_command(compiler, *pair, refused) for pair in objects), link])
    if problem is None:
        built.replace(library)
    return problem


def _is_clang(compiler: Sequence[str]) -> bool:
    """Whatever it is called; one that cannot be asked cannot compile either."""
    try:
        answer = subprocess.run(
            [*compiler, "--version"], capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "clang" in answer.stdout


def _compile_command(
    compiler: Sequence[str], source: Path, output: Path, refused: Sequence[str]
) -> list[str]:
    digest = f'-DPAGEWIRE_SOURCES="{sources_digest()}"'
    known = (flag for flag in _FLAGS if flag not in refused)
    flags = (*known, *_VARIANT_FLAGS.get(source.name, ()), digest)
    return [*compiler, *flags, "-c", str(source), "-o", str(output)]


def _run(commands: Sequence[Sequence[str]]) -> str | None:
    for command in commands:
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S
            )
        except subprocess.CalledProcessError as error:
            return f"{command[0]} failed:\n{error.stderr}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{command[0]}: {error}"
    return None


def main() -> None:
    """Build unless what is there is current."""
    if is_current():
        return
    problem = build()
    if problem is None:
        print(f"built {LIBRARY.name}")
        return
    # What is there is of other sources, and is not loaded where it cannot be removed.
    with contextlib.suppress(OSError):
        LIBRARY.unlink(missing_ok=True)
    print(f"warning: CPU kernels are not built, plain PyTorch is used: {problem}", file=sys.stderr)


if __name__ == "__main__":
    main()
