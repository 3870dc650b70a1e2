"""What each attention backend can do, and why `xformers` cannot run something.

Owns the capabilities that the selector checks and the table in docs/design/attention-backends.md
shows. Imports neither torch nor xformers: asking costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Literal

Platform = Literal["cpu", "cuda"]

MIN_CAPABILITY = (8, 0)
"""Compute capability of a CUDA device that xformers' split-K operator needs."""
TRITON_VERSIONS = ((3, 6), (3, 9))
"""From, and up to without it: 3.9 took away the block pointers that the kernel is written with."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one backend does on one platform."""

    tests: str
    """The target of make that runs them."""
    dtypes: tuple[str, ...]
    block_sizes: tuple[int, ...] | None
    """None: any."""
    head_dims: tuple[int, ...] | None
    """Those the kernel takes; others are padded with zeros up to the next. None: any."""
    softcap: bool
    prefill: str
    """How more tokens of a row than `MAX_UNIFORM_QUERIES` are computed."""


_BLOCK_SIZES = (16, 32, 64, 128, 256)
_HEAD_DIMS = (16, 32, 64, 128, 256, 512)

SUPPORT: Mapping[tuple[str, Platform], Capabilities] = MappingProxyType(
    {
        ("torch", "cpu"): Capabilities(
            tests="test",
            dtypes=("float32", "bfloat16", "float16"),
            block_sizes=None,
            head_dims=None,
            softcap=True,
            prefill="gathered tiles",
        ),
        ("torch", "cuda"): Capabilities(
            tests="test-cuda",
            dtypes=("float32", "bfloat16", "float16"),
            block_sizes=None,
            head_dims=None,
            softcap=True,
            prefill="gathered tiles",
        ),
        ("xformers", "cpu"): Capabilities(
            tests="test",
            dtypes=("float32", "float16"),
            block_sizes=_BLOCK_SIZES,
            head_dims=_HEAD_DIMS,
            softcap=False,
            prefill="split-K, in pieces",
        ),
        ("xformers", "cuda"): Capabilities(
            tests="test-cuda",
            dtypes=("bfloat16", "float16"),
            block_sizes=_BLOCK_SIZES,
            head_dims=_HEAD_DIMS,
            softcap=False,
            prefill="flash over gathered pages",
        ),
    }
)


def padded_head_dim(head_dim: int) -> int:
    """The smallest size of a head that the xformers kernel takes for `head_dim`.

    Raises:
        ValueError: There is none.
    """
    for size in _HEAD_DIMS:
        if head_dim <= size:
            return size
    raise ValueError(f"takes heads of up to {_HEAD_DIMS[-1]} values, not {head_dim}")


def xformers_problem(
    platform: Platform, dtype: str, block_size: int, head_dim: int, softcap: float | None
) -> str | None:
    """Why xformers cannot run this, with what to change; None: it can."""
    supported = SUPPORT["xformers", platform]
    if softcap is not None:
        return "cannot cap attention scores, as this model does: use --attention-backend torch"
    if dtype not in supported.dtypes:
        return f"takes {_names(supported.dtypes)} on this device, not {dtype}: set --dtype"
    if supported.block_sizes is not None and block_size not in supported.block_sizes:
        return f"takes blocks of {_names(supported.block_sizes)} tokens: set --block-size"
    try:
        padded_head_dim(head_dim)
    except ValueError as error:
        return f"{error}: use --attention-backend torch"
    if platform == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return (
            "runs on a CPU in Triton's interpreter alone, for tests: set TRITON_INTERPRET=1 in the "
            "worker's environment, or use --attention-backend torch"
        )
    return _installation_problem()


def _installation_problem() -> str | None:
    try:
        version("xformers")
        triton = version("triton")
    except PackageNotFoundError as error:
        return f"needs the package {error.name}: install pagewire[worker-gpu]"
    lowest, too_high = TRITON_VERSIONS
    found = tuple(int(part) for part in triton.split(".")[:2])
    if lowest <= found < too_high:
        return None
    wanted = f"{_dotted(lowest)} up to, but not including, {_dotted(too_high)}"
    return f"needs triton {wanted}; {triton} is installed"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _names(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))
