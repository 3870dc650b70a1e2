"""langchain-openai, litellm, instructor, anthropic and npm's openai, each in its own environment.

A client runs once, in a process of its own (scripts/); a test looks at one thing that it saw.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import SCRIPTS, environment, run, run_cases, seen
from tests.clients.served import Served

CAPITAL = "The capital of France is Paris."
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def langchain(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    return cases("langchain", request, folder)


@pytest.fixture(scope="module")
def litellm(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    return cases("litellm", request, folder)


@pytest.fixture(scope="module")
def instructor(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    return cases("instructor", request, folder)


@pytest.fixture(scope="module")
def anthropic(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    return cases("anthropic", request, folder)


@pytest.fixture(scope="module")
def npm(request: pytest.FixtureRequest) -> dict[str, Any]:
    packages = environment("npm-openai")
    command = ["node", str(SCRIPTS / "openai_cases.mjs")]
    found: dict[str, Any] = json.loads(run(command, stack(request), packages))
    return found


def cases(name: str, request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    environment(name)
    return run_cases(name, stack(request), folder)


def stack(request: pytest.FixtureRequest) -> Served:
    """Return the stack, which starts only once there is a client for it."""
    served: Served = request.getfixturevalue("served")
    return served


def test_langchain_invokes_and_streams(langchain: dict[str, Any]) -> None:
    saw = seen(langchain, "invoke")
    assert saw["text"] == "".join(saw["streamed"]) == CAPITAL
    assert saw["finish_reason"] == "stop"
    assert saw["usage"]["input_tokens"] > saw["usage"]["output_tokens"] > 5


def test_langchain_batches(langchain: dict[str, Any]) -> None:
    saw = seen(langchain, "batch")
    assert saw["together"] == saw["alone"]


def test_langchain_binds_tools(langchain: dict[str, Any]) -> None:
    saw = seen(langchain, "tools")
    assert saw["name"] == "get_weather"
    assert saw["args"] == saw["streamed_args"] == {"city": "Paris"}
    assert "23" in saw["final"]


def test_langchain_has_structured_output(langchain: dict[str, Any]) -> None:
    saw = seen(langchain, "structured")
    assert saw == {"json_schema": ["Verdict", True], "function_calling": ["Verdict", True]}


@pytest.mark.parametrize("case", ["responses", "completion"])
def test_langchain_uses_the_other_routes(langchain: dict[str, Any], case: str) -> None:
    saw = seen(langchain, case)
    assert saw["text"] == "".join(saw["streamed"]) and "Paris" in saw["text"]


def test_litellm_completes_and_streams(litellm: dict[str, Any]) -> None:
    saw = seen(litellm, "completion")
    assert saw["text"] == "".join(saw["streamed"]) == saw["rebuilt"] == CAPITAL
    assert saw["finish_reason"] == "stop" and saw["usage"] == saw["streamed_usage"]
    assert seen(litellm, "hosted_vllm") == CAPITAL
    assert seen(litellm, "several_at_once") == [CAPITAL] * 3
    assert seen(litellm, "responses") == CAPITAL


def test_litellm_completes_texts(litellm: dict[str, Any]) -> None:
    saw = seen(litellm, "text_completion")
    assert saw["text"] == "".join(saw["streamed"]) and "Paris" in saw["text"]


def test_litellm_calls_tools_and_has_forms(litellm: dict[str, Any]) -> None:
    saw = seen(litellm, "tools")
    assert (saw["finish_reason"], saw["name"]) == ("tool_calls", "get_weather")
    for text in (saw["arguments"], seen(litellm, "structured")):
        assert json.loads(text)["city"] in ("Paris", "Rome")


def test_litellm_tells_errors_apart(litellm: dict[str, Any]) -> None:
    assert seen(litellm, "errors") == ["BadRequestError", "NotFoundError", "AuthenticationError"]


@pytest.mark.parametrize("case", ["tools", "json_schema", "partial"])
def test_instructor_gives_a_model(instructor: dict[str, Any], case: str) -> None:
    city = seen(instructor, case)["city"]
    assert set(city) == {"name", "capital", "tags"}
    assert city["name"] in ("Paris", "Rome") and len(city["tags"]) <= 2


def test_instructor_reads_any_json(instructor: dict[str, Any]) -> None:
    assert seen(instructor, "json_object") == "Paris"


def test_instructor_sees_a_model_grow(instructor: dict[str, Any]) -> None:
    assert seen(instructor, "partial")["num_parts"] > 3


def test_anthropic_streams_what_a_whole_message_has(anthropic: dict[str, Any]) -> None:
    saw = seen(anthropic, "text")
    assert saw["text"] == "".join(saw["streamed"]) == saw["final"] == CAPITAL
    assert saw["stop_reason"] == saw["final_stop_reason"] == "end_turn"
    num_input = seen(anthropic, "count_tokens")
    assert saw["usage"] == [num_input - saw["cached"], saw["final_output_tokens"]]
    assert seen(anthropic, "raw_events")[:2] == ["message_start", "content_block_start"]
    assert seen(anthropic, "stop_sequence") == ["stop_sequence", "France", "The capital of "]
    assert "Paris" in seen(anthropic, "prefill")


def test_anthropic_calls_tools(anthropic: dict[str, Any]) -> None:
    saw = seen(anthropic, "tools")
    assert (saw["stop_reason"], saw["name"], saw["final"]) == ("tool_use", "get_weather", "text")
    assert saw["input"] == saw["streamed"] == {"city": "Paris"}
    (block,) = seen(anthropic, "several_tools_are_required")
    assert block[0] == "tool_use" and block[1]["city"] in ("Paris", "Rome")


def test_anthropic_tells_errors_apart(anthropic: dict[str, Any]) -> None:
    assert seen(anthropic, "errors") == [
        ["BadRequestError", "invalid_request_error"],
        ["NotFoundError", "not_found_error"],
        ["AuthenticationError", "authentication_error"],
    ]


@pytest.mark.parametrize("case", ["chat", "stream_helper", "completion", "responses"])
def test_npm_streams_what_a_whole_answer_has(npm: dict[str, Any], case: str) -> None:
    saw = seen(npm, case)
    assert saw["text"] == "".join(saw["streamed"]) and "Paris" in saw["text"]


def test_npm_calls_tools_and_has_forms(npm: dict[str, Any]) -> None:
    saw = seen(npm, "tools")
    assert (saw["finish_reason"], saw["name"]) == ("tool_calls", "get_weather")
    assert saw["args"] == saw["streamed_args"] == {"city": "Paris"}
    assert seen(npm, "structured") == {"city": "Paris"}


def test_npm_tells_errors_apart(npm: dict[str, Any]) -> None:
    assert seen(npm, "errors") == ["BadRequestError", "NotFoundError", "AuthenticationError"]
