"""Whole stacks of four processes, started as a user starts them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, start_stack


@pytest.fixture(scope="module")
def sim_stack() -> Iterator[Stack]:
    """A stack on the simulated worker."""
    with start_stack("--device", "sim") as stack:
        yield stack


@pytest.fixture(scope="session")
def smollm2_stack() -> Iterator[Stack]:
    """A stack on the embedded model, in float32."""
    with start_stack("--model", "smollm2", "--dtype", "float32") as stack:
        yield stack
