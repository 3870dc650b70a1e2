"""`pagewire bench serve` as it is called, against servers with known answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import grpc
import pytest

from pagewire.cli.__main__ import main
from pagewire.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.pagewire.cli.bench.scripted_server import (
    DONE,
    HEAD,
    MODELS,
    ScriptedServer,
    serving,
    text,
    usage,
)
from tests.security.authority import Authority

ANSWER = [HEAD, text("a"), text("b"), text("c"), usage(7, 3, 2), DONE]


@contextmanager
def in_thread(*scripts: list[bytes]) -> Iterator[ScriptedServer]:
    """Serve beside the command, which has an event loop of its own."""
    started, servers = Event(), list[ScriptedServer]()
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    async def serve() -> None:
        async with serving(*scripts) as server:
            servers.append(server)
            started.set()
            await ending.wait()

    thread = Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    started.wait()
    try:
        yield servers[0]
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


def test_a_run_prints_a_table_and_writes_all_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    with in_thread(MODELS, ANSWER) as server:
        flags = [
            f"--base-url={server.url}",
            "--num-prompts=5",
            "--num-warmups=2",
            "--random-input-len=7",
            "--random-output-len=3",
            "--max-concurrency=2",
            "--goodput=ttft:60000,e2e:60000",
            "--metric-percentiles=50,99",
            "--api-key=hush",
            "--ignore-eos",
            f"--output-file={path}",
        ]
        code = main(["bench", "serve", *flags])
    assert code == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    figures = report["figures"]
    assert (figures["num_completed"], figures["num_failed"]) == (5, 0)
    assert (figures["num_prompt_tokens"], figures["num_output_tokens"]) == (35, 15)
    assert figures["num_cached_tokens"] == 10
    assert figures["goodput"] == figures["request_rate"]
    assert set(figures["latencies_ms"]) == {"ttft", "tpot", "itl", "e2e"}
    assert "hush" not in path.read_text(encoding="utf-8")
    assert [len(body["prompt"]) for body in server.bodies[1:]] == [7] * 7
    assert {body["model"] for body in server.bodies[1:]} == {"tiny"}
    prompts = {tuple(body["prompt"]) for body in server.bodies[1:]}
    assert len(prompts) == 7  # warm-ups leave nothing in a prefix cache that the run has
    table = capsys.readouterr().out
    assert "requests completed                          5" in table
    assert "p99" in table


def test_requests_that_fail_are_counted_and_the_exit_code_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusal = [b"HTTP/1.1 503 Full\r\ncontent-length: 4\r\n\r\nfull"]
    with in_thread(ANSWER, ANSWER, refusal) as server:
        flags = [f"--base-url={server.url}", "--model=tiny", "--num-prompts=3"]
        assert main(["bench", "serve", *flags]) == 1
    assert "2 failed: HTTP 503: full" in capsys.readouterr().out


def test_a_first_request_that_fails_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = [b"HTTP/1.1 401 No\r\ncontent-length: 3\r\n\r\nkey"]
    with in_thread(refusal) as server:
        flags = [f"--base-url={server.url}", "--model=tiny"]
        assert main(["bench", "serve", *flags]) == 1
        assert len(server.heads) == 1
    assert capsys.readouterr().err == "error: the first request failed: HTTP 401: key\n"


def test_a_trace_is_replayed_as_text(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"prompt": "hi there", "max_tokens": 3}\n', encoding="utf-8")
    with in_thread(ANSWER) as server:
        flags = [f"--base-url={server.url}", "--model=tiny", f"--dataset-path={trace}"]
        assert main(["bench", "serve", *flags, "--num-warmups=0"]) == 0
    assert [body["prompt"] for body in server.bodies] == ["hi there"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--goodput=ttft"], "--goodput ttft: must be ttft or tpot or e2e, a colon"),
        (["--goodput=itl:5"], "must be ttft"),
        (["--goodput=ttft:-5"], "must be ttft"),
        (["--extra-body=[]"], "--extra-body []: must be a JSON object"),
        (["--request-rate=0"], "--request-rate 0: must be above 0"),
        (["--max-concurrency=0"], "must be at least 1"),
        (["--random-range-ratio=1"], "must be in [0, 1)"),
        (["--metric-percentiles=101"], "must be between 0 and 100"),
        (["--backend=vllm"], "--backend vllm: must be"),
        (["--base-url=localhost:1"], "must be http://host:port"),
        (["--backend=grpc", "--target=nowhere"], "must be host:port"),
        (["--backend=openai", "--tls"], "--backend openai: is of --backend grpc"),
        (["--backend=grpc", "--private-key=x"], "--private-key and --certificate-chain go"),
        (["--backend=grpc", "--root-certificates=/nonexistent"], "--root-certificates /nonexi"),
        (["--backend=grpc", f"--root-certificates={__file__}"], "is no PEM file"),
        (["--dataset-path=/nonexistent"], "No such file"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_chat_cannot_have_token_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"prompt": [1], "max_tokens": 3}\n', encoding="utf-8")
    assert main(["bench", "serve", "--backend=openai-chat", f"--dataset-path={trace}"]) == 2
    assert "prompts must be text" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["latency"]])
def test_there_is_only_serve(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert "pagewire bench serve" in capsys.readouterr().err


class Scripted(inference_pb2_grpc.InferenceServiceServicer):
    """Answers all but text with three tokens in two messages."""

    def __init__(self) -> None:
        self.requests: list[inference_pb2.GenerateRequest] = []

    def Generate(self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext):  # type: ignore[no-untyped-def, override]
        self.requests.append(request)
        if request.text:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no text here")
        for ids in ([5], [6, 7]):
            delta = inference_pb2.GenerationDelta(text="x", token_ids=ids)
            yield inference_pb2.GenerateResponse(delta=delta)
        tokens = common_pb2.Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=1)
        yield inference_pb2.GenerateResponse(usage=tokens)


@contextmanager
def grpc_serving(
    credentials: grpc.ServerCredentials | None = None,
) -> Iterator[tuple[str, Scripted]]:
    servicer, server = Scripted(), grpc.server(ThreadPoolExecutor(4))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer
    finally:
        server.stop(None).wait()


def test_the_gateways_own_api(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    with grpc_serving() as (target, servicer):
        flags = ["--backend=grpc", f"--target={target}", "--num-prompts=4", f"--output-file={path}"]
        assert main(["bench", "serve", *flags, "--random-output-len=3", "--ignore-eos"]) == 0
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert (figures["num_completed"], figures["num_output_tokens"]) == (4, 12)
    assert figures["messages_per_token"] == pytest.approx(2 / 3)
    assert "A message has 1.50 tokens" in capsys.readouterr().out
    asked = servicer.requests[0]
    assert (asked.stopping.max_tokens, asked.stopping.ignore_eos) == (3, True)
    assert len(asked.token_ids.ids) == 128


def test_a_refusal_over_grpc_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with grpc_serving() as (target, _):
        flags = ["--backend=grpc", f"--target={target}", "--text-prompts"]
        assert main(["bench", "serve", *flags]) == 1
    assert "INVALID_ARGUMENT: no text here" in capsys.readouterr().err


@pytest.mark.parametrize("wants_certificate", [False, True])
def test_a_gateway_with_tls_is_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wants_certificate: bool
) -> None:
    authority = Authority(tmp_path, "ca")
    its, ours = authority.issue("gateway.test"), authority.issue("client.test")
    pair = (its.key.read_bytes(), its.cert.read_bytes())
    trusted = its.ca.read_bytes() if wants_certificate else None
    credentials = grpc.ssl_server_credentials([pair], trusted, wants_certificate)
    own = [f"--private-key={ours.key}", f"--certificate-chain={ours.cert}"]
    trusting = [f"--root-certificates={its.ca}", "--tls-server-name=gateway.test"]
    with grpc_serving(credentials) as (target, servicer):
        flags = ["--backend=grpc", f"--target={target}", "--num-prompts=2", "--request-timeout=20"]
        needed = [*trusting, *own] if wants_certificate else trusting
        assert main(["bench", "serve", *flags, *needed]) == 0
        num_requests = len(servicer.requests)
        for lacking in ([], ["--tls"], needed[:-1] if not wants_certificate else trusting):
            capsys.readouterr()
            assert main(["bench", "serve", *flags, *lacking]) == 1
            assert f"the gateway at {target} cannot be reached" in capsys.readouterr().err
        assert len(servicer.requests) == num_requests


def test_a_gateway_that_is_away_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--backend=grpc", "--target=127.0.0.1:1"]) == 1
    assert "UNAVAILABLE: the gateway at 127.0.0.1:1 cannot be reached" in capsys.readouterr().err
