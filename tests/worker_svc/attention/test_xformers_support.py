"""The table in the docs, and what is refused, are both the capabilities that the code states."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from pagewire.engine_config import Dtype
from worker_svc.attention.support import (
    SUPPORT,
    Capabilities,
    Platform,
    padded_head_dim,
    xformers_problem,
)

DOCS = Path(__file__).resolve().parents[3] / "docs" / "design" / "attention-backends.md"
COLUMNS = {
    ("torch", "cpu"): "torch, CPU",
    ("torch", "cuda"): "torch, CUDA",
    ("xformers", "cpu"): "xformers, CPU (interpreter)",
    ("xformers", "cuda"): "xformers, CUDA",
}
PLATFORMS: list[Platform] = ["cpu", "cuda"]


def cells(capabilities: Capabilities) -> dict[str, str]:
    head_dims = listed(capabilities.head_dims)
    return {
        "runs in": f"`make {capabilities.tests}`",
        "types": listed(capabilities.dtypes),
        "block sizes": listed(capabilities.block_sizes),
        "head sizes": f"{head_dims}; others padded" if capabilities.head_dims else head_dims,
        "soft-capped scores": "yes" if capabilities.softcap else "no",
        "long prefill": capabilities.prefill,
    }


def listed(values: Iterable[object] | None) -> str:
    return "any" if values is None else ", ".join(map(str, values))


def test_the_docs_table_is_what_the_code_states() -> None:
    assert SUPPORT.keys() == COLUMNS.keys()
    columns = [cells(SUPPORT[key]) for key in COLUMNS]
    lines = [["", *COLUMNS.values()]]
    lines += [[name, *(column[name] for column in columns)] for name in columns[0]]
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    table = "\n".join([rows[0].replace("|  |", "| |"), "|---|---|---|---|---|", *rows[1:]])
    assert table in DOCS.read_text()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_is_refused_is_what_is_not_stated(platform: Platform) -> None:
    supported = SUPPORT["xformers", platform]
    for dtype in set(get_args(Dtype)) - {"auto"}:
        problem = xformers_problem(platform, dtype, 16, 64, None)
        assert (problem is None) == (dtype in supported.dtypes), problem
    for block_size in range(1, 1025):
        problem = xformers_problem(platform, "float16", block_size, 64, None)
        assert (problem is None) == (block_size in (supported.block_sizes or ())), problem
    for head_dim in range(1, 600):
        problem = xformers_problem(platform, "float16", 16, head_dim, None)
        assert (problem is None) == (head_dim <= max(supported.head_dims or ())), problem
    problem = xformers_problem(platform, "float16", 16, 64, 50.0)
    assert (problem is None) == supported.softcap


def test_heads_are_padded_to_the_next_native_size() -> None:
    native = SUPPORT["xformers", "cuda"].head_dims or ()
    assert [padded_head_dim(size) for size in native] == list(native)
    assert [padded_head_dim(size) for size in (8, 17, 80, 96, 192)] == [16, 32, 128, 128, 256]
    with pytest.raises(ValueError, match="up to 512"):
        padded_head_dim(513)
