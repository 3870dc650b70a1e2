"""The example in Node: stubs from `buf generate`, a chat over @grpc/grpc-js.

It installs packages from npm's registry, so it is a long form; without Node it is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.errors import InvalidRequestError, ServiceUnavailableError
from pagewire.v1 import inference_pb2
from tests.fakes.scripted_inference import ScriptedInference, running_inference
from tests.pagewire.client.conftest import events

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, installed and generated, in a copy of what it refers to."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: the Node example is NOT tested")
    root = tmp_path_factory.mktemp("node")
    shutil.copytree(ROOT / "protos", root / "protos")
    (root / "pagewire" / "client").mkdir(parents=True)
    config = "pagewire/client/service_config.json"
    shutil.copy(ROOT / config, root / config)
    folder = root / "examples" / "node"
    ignored = shutil.ignore_patterns("node_modules", "gen")
    shutil.copytree(ROOT / "examples" / "node", folder, ignore=ignored)
    buf = Path(sys.executable).parent / "buf"
    for command in (["npm", "ci", "--no-audit", "--no-fund"], [str(buf), "generate"]):
        subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT_S)
    return folder


@pytest.fixture
def gateway() -> Iterator[ScriptedInference]:
    with running_inference() as servicer:
        yield servicer


def chat(example: Path, gateway: ScriptedInference, *arguments: str) -> tuple[int, str, str]:
    env = {**os.environ, "PAGEWIRE_ADDRESS": gateway.target, "PAGEWIRE_API_KEY": "secret"}
    command = ["node", "src/chat.js", *arguments]
    done = subprocess.run(
        command, cwd=example, env=env, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    return done.returncode, done.stdout, done.stderr


def test_an_answer_is_streamed(example: Path, gateway: ScriptedInference) -> None:
    gateway.scripts["Chat"] = lambda request, call: events(
        "Par", "is ✓", kind=inference_pb2.ChatResponse
    )
    code, out, err = chat(example, gateway, "What is the capital of France?")
    assert (code, err) == (0, "")
    assert out == "Paris ✓\n[length]\n[1 prompt tokens, 2 completion tokens]\n"
    (call,) = gateway.calls
    assert call.request.messages[0].content == "What is the capital of France?"
    assert call.request.sampling.HasField("temperature")
    assert call.metadata["authorization"] == "Bearer secret"
    assert 0 < call.time_remaining <= 60


def test_a_refusal_is_told(example: Path, gateway: ScriptedInference) -> None:
    def refuse(request, call):  # type: ignore[no-untyped-def]
        raise InvalidRequestError("messages: too long")
        yield

    gateway.scripts["Chat"] = refuse
    code, out, err = chat(example, gateway, "Hi")
    assert (code, out, err) == (1, "", "INVALID_ARGUMENT: messages: too long\n")


def test_the_service_config_retries_what_was_not_admitted(
    example: Path, gateway: ScriptedInference
) -> None:
    def come_later(request, call):  # type: ignore[no-untyped-def]
        if len(gateway.calls) < 3:
            raise ServiceUnavailableError("draining")
        yield from events("Hi", kind=inference_pb2.ChatResponse)

    gateway.scripts["Chat"] = come_later
    code, out, _ = chat(example, gateway, "Hi")
    assert code == 0 and out.startswith("Hi\n") and len(gateway.calls) == 3


def test_a_question_is_needed(example: Path, gateway: ScriptedInference) -> None:
    assert chat(example, gateway)[0] == 2
