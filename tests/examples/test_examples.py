"""Every script in examples/, run as its docstring says, on the simulated worker.

What that worker says is no language, so what is checked is what the script is to show: that a
stream is the whole answer, that a form holds, that a tool is called.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.e2e.stack import ROOT, Stack, start_stack

EXAMPLES = ROOT / "examples"
TIMEOUT_S = 240.0
pytestmark = pytest.mark.timeout(600)
CHECKED = {
    "killed_worker",
    "logprobs",
    "offline_llm",
    "openai_chat",
    "stream_async",
    "structured_output",
    "tools",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with start_stack("--device=sim") as started:
        yield started


def run(name: str, *arguments: str) -> str:
    """Run a script to its end and return what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PAGEWIRE_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def after(label: str, printed: str) -> str:
    """Return what stands behind a label, up to the next label or the end."""
    found = re.search(rf"^{label} +(.*?)(?=^\w+: |\Z)", printed, re.MULTILINE | re.DOTALL)
    assert found is not None, printed
    return found[1].strip()


def test_each_example_is_tested_and_says_how_to_run_it() -> None:
    scripts = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert set(scripts) == CHECKED
    for name, path in scripts.items():
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert f".venv/bin/python examples/{name}.py" in text


@pytest.mark.skipif(find_spec("openai") is None, reason="the package openai is not installed")
def test_a_chat_with_openais_client(stack: Stack) -> None:
    printed = run("openai_chat", "--base-url", f"{stack.http_url}/v1")
    assert after("whole:", printed) == after("stream:", printed) != ""


def test_streams_with_the_async_client(stack: Stack) -> None:
    lines = run("stream_async", "--address", stack.grpc_target).splitlines()
    for number in (1, 2):
        own = [line for line in lines if line.startswith(f"[{number}] ")]
        assert len(own) > 2 and re.fullmatch(r"\[.\] \d+ tokens in, \d+ tokens out", own[-1])


def test_answers_with_a_form(stack: Stack) -> None:
    printed = run("structured_output", "--address", stack.grpc_target)
    city = ast.literal_eval(after("object:", printed))
    assert set(city) == {"name", "continent", "population_in_millions"}
    assert 0 <= city["population_in_millions"] <= 40
    assert after("choice:", printed) in ("positive", "negative")
    assert re.fullmatch(r"[12]\d{3}-[01]\d-[0-3]\d", after("regex:", printed))


def test_a_tool_is_called_and_answered(stack: Stack) -> None:
    printed = run("tools", "--address", stack.grpc_target)
    name, _, arguments = after("call:", printed).partition(" ")
    assert name == "get_weather"
    assert json.loads(after("result:", printed))["city"] == json.loads(arguments)["city"]
    assert after("answer:", printed)


def test_logprobs_as_a_table(stack: Stack) -> None:
    lines = run("logprobs", "Hello", "--address", stack.grpc_target).splitlines()
    assert 1 <= len(lines) <= 8
    for line in lines:
        assert re.fullmatch(r" *(['\"]).*\1 +\d+%   top: (.+ \d+%  ?){3}", line + " "), line


def test_many_prompts_offline() -> None:
    lines = run("offline_llm", "--device", "sim").splitlines()
    assert [line.partition(":")[0] for line in lines[:20]] == [
        f"'{number} and {number} is'" for number in range(1, 21)
    ]
    num_tokens = int(lines[20].partition(" ")[0])
    assert 20 <= num_tokens <= 160


def test_a_killed_worker_changes_no_answer() -> None:
    printed = run("killed_worker")
    assert re.search(r"^killed worker \d+; 0 of 8 answers had ended$", printed, re.MULTILINE)
    assert "8 of 8 answers are the same" in printed
