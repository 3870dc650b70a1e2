"""One stack for all clients: the embedded model in float32, behind an API key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.served import API_KEY, MAX_MODEL_LEN, Served
from tests.e2e.stack import start_stack


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    """A stack that answers clients which have the key."""
    flags = (
        *("--model", "smollm2", "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)),
        # Answers are told apart by texts, which batches of other sizes must not change.
        "--batch-invariant",
    )
    with start_stack(*flags, env={"PAGEWIRE_API_KEY": f"tests={API_KEY}"}) as stack:
        yield Served(stack.http_url)
