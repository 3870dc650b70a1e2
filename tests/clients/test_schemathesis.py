"""schemathesis goes through the OpenAPI document against a stack on the simulated worker.

Whatever it sends, no answer is a 5xx or one that the document does not have. Longer:
`pytest tests/clients/test_schemathesis.py -m slow`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, start_stack

# Not whether data that breaks the schema is refused and other data is taken: what is no hint is
# ignored, and many rules (which token ids there are, what is a regular expression) are no schema's.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    # A short context, since what is generated at random often asks for all of it.
    with start_stack("--device", "sim", "--max-model-len", "128") as started:
        yield started


@pytest.mark.parametrize(
    ("phases", "num_examples"),
    [
        ("fuzzing", 2),
        pytest.param("coverage,fuzzing", 60, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_whatever_is_sent_the_answer_is_documented(
    stack: Stack, tmp_path: Path, phases: str, num_examples: int
) -> None:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{stack.http_url}/openapi.json"),
        *("--checks", ",".join(CHECKS), "--phases", phases, "--continue-on-failure"),
        *("--max-examples", str(num_examples), "--generation-deterministic", "--no-shrink"),
        *("--warnings", "off", "--no-color"),
        *("--request-timeout", "30", "--suppress-health-check", "all"),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
    assert " passed" in run.stdout
