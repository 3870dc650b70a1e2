"""The third-party gateway `smg` drives our engine through `VllmEngine`.

On the simulated worker, whose tokens follow from the prompt alone: so what `smg` makes of them is
compared with what our own gateway makes of them, in the same stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from tests.clients.smg import running_smg, smg_program
from tests.e2e.stack import start_stack

MODEL = "smollm2"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
MAX_NUM_SEQS, MAX_QUEUED = 2, 2


@dataclass
class Setup:
    smg: httpx.Client
    ours: httpx.Client
    engine: vllm_engine_pb2_grpc.VllmEngineStub
    log: Path
    """What smg says."""

    def load(self) -> vllm_engine_pb2.SchedulerLoad:
        return self.engine.GetLoads(vllm_engine_pb2.GetLoadsRequest(), timeout=10).loads[0]

    def wait_load(self, running: int, waiting: int) -> vllm_engine_pb2.SchedulerLoad:
        """Wait until so many requests are there; the test's own timeout bounds it."""
        while True:
            load = self.load()
            if (load.num_running_reqs, load.num_waiting_reqs) == (running, waiting):
                return load


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    program = smg_program()
    if program is None:
        pytest.skip("smg is not installed: pip install smg")
    flags = (
        *("--device", "sim", "--sim-step-time-us", "2000", "--vllm-grpc-port", "0"),
        *("--max-num-seqs", str(MAX_NUM_SEQS), "--max-num-queued-requests", str(MAX_QUEUED)),
    )
    log = tmp_path_factory.mktemp("smg") / "smg.log"
    with start_stack(*flags) as stack, ExitStack() as exits:
        worker = re.search(r"grpc://\S+", stack.stderr())
        assert worker is not None, stack.stderr()
        url = exits.enter_context(running_smg(program, worker[0], MODEL, log))
        clients = [
            exits.enter_context(httpx.Client(base_url=base, timeout=60))
            for base in (url, stack.http_url)
        ]
        channel = exits.enter_context(grpc.insecure_channel(worker[0].removeprefix("grpc://")))
        yield Setup(*clients, vllm_engine_pb2_grpc.VllmEngineStub(channel), log)


def post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        data = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def usage_of(answer: dict[str, Any]) -> tuple[int, int]:
    return answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def test_the_model_is_listed_with_what_the_engine_says_of_it(setup):
    (worker,) = setup.smg.get("/workers").json()["workers"]
    assert (worker["model_id"], worker["runtime_type"]) == (MODEL, "vllm")
    assert worker["labels"]["max_num_seqs"] == str(MAX_NUM_SEQS)


def test_a_chat_is_what_our_own_gateway_makes_of_it(setup):
    answer, ours = (
        post(client, "/v1/chat/completions", **CHAT) for client in (setup.smg, setup.ours)
    )
    assert answer["choices"][0]["message"]["content"] == ours["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == ours["choices"][0]["finish_reason"]
    assert usage_of(answer) == usage_of(ours)


def test_the_deltas_of_a_streamed_chat_are_the_text(setup):
    whole = post(setup.smg, "/v1/chat/completions", **CHAT)
    events = stream(
        setup.smg, "/v1/chat/completions", **CHAT, stream_options={"include_usage": True}
    )
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert usage_of(events[-1]) == usage_of(whole)
    assert len(deltas) > 3


def test_several_outputs_of_a_chat(setup):
    one, two = (post(setup.smg, "/v1/chat/completions", **CHAT, n=n) for n in (1, 2))
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert usage_of(two) == (usage_of(one)[0], 2 * usage_of(one)[1])


def test_the_logprobs_of_a_chat_are_those_of_our_own_gateway(setup):
    body = {**CHAT, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    answer, ours = (
        post(client, "/v1/chat/completions", **body)["choices"][0]["logprobs"]["content"]
        for client in (setup.smg, setup.ours)
    )
    assert [len(token["top_logprobs"]) for token in answer] == [2] * 4
    for token, our_token in zip(answer, ours, strict=True):
        assert token["logprob"] == pytest.approx(our_token["logprob"], abs=1e-4)
        for top, our_top in zip(token["top_logprobs"], our_token["top_logprobs"], strict=True):
            assert top["logprob"] == pytest.approx(our_top["logprob"], abs=1e-4)


def test_completions(setup):
    body = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer, ours = (post(client, "/v1/completions", **body) for client in (setup.smg, setup.ours))
    assert answer["choices"][0]["text"] == ours["choices"][0]["text"]
    assert usage_of(answer) == usage_of(ours)
    events = stream(setup.smg, "/v1/completions", **body)
    assert "".join(e["choices"][0]["text"] for e in events) == answer["choices"][0]["text"]


def test_a_stop_string_ends_the_engines_work_too(setup):
    body = {"model": MODEL, "prompt": "Once upon", "max_tokens": 200, "temperature": 0}
    text = post(setup.ours, "/v1/completions", **{**body, "max_tokens": 40})["choices"][0]["text"]
    body["stop"] = [text[10:14]]
    answer, ours = (post(client, "/v1/completions", **body) for client in (setup.smg, setup.ours))
    assert answer["choices"][0]["text"] == ours["choices"][0]["text"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert usage_of(answer) == usage_of(ours)


def test_responses(setup):
    body = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
    answer = post(setup.smg, "/v1/responses", **body, max_output_tokens=12)
    chat = post(setup.smg, "/v1/chat/completions", **CHAT)
    text = answer["output"][0]["content"][0]["text"]
    assert text == chat["choices"][0]["message"]["content"]
    kinds = [e["type"] for e in stream(setup.smg, "/v1/responses", **body, max_output_tokens=12)]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_messages(setup):
    answer = post(setup.smg, "/v1/messages", **CHAT)
    chat = post(setup.smg, "/v1/chat/completions", **CHAT)
    assert answer["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert answer["usage"]["output_tokens"] == usage_of(chat)[1]


def test_it_learns_what_the_prefix_cache_holds(setup):
    # The events come on a stream of their own; the test's timeout bounds the wait for one.
    for number in count():
        prompt = f"{number} " * 40
        post(setup.smg, "/v1/completions", model=MODEL, prompt=prompt, max_tokens=1)
        if "Learned block_size from KV event" in setup.log.read_text():
            break


def test_a_form_is_kept(setup):
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    body = {**CHAT, "max_tokens": 100, "response_format": form}
    answer = post(setup.smg, "/v1/chat/completions", **body)
    assert json.loads(answer["choices"][0]["message"]["content"])["city"] in ("Paris", "Rome")


def test_bad_input_is_the_clients_fault_and_named(setup):
    response = setup.smg.post("/v1/chat/completions", json={**CHAT, "regex": "[a"})
    assert response.status_code == 400
    assert "regex" in response.json()["error"]["message"]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_away_leaves_no_request_and_no_blocks(setup, is_streamed):
    body = {**CHAT, "max_tokens": 4000, "ignore_eos": True, "stream": is_streamed}
    with ExitStack() as exits:
        if is_streamed:
            call = setup.smg.stream("POST", "/v1/chat/completions", json=body)
            next(exits.enter_context(call).iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                setup.smg.post("/v1/chat/completions", json=body, timeout=0.5)
    assert setup.wait_load(0, 0).token_usage == 0


def test_a_full_queue_is_429_and_the_others_go_on(setup):
    body = json.dumps({**CHAT, "max_tokens": 8000, "ignore_eos": True}).encode()
    address = setup.smg.base_url.netloc.decode()
    with ExitStack() as exits:
        for number in range(1, MAX_NUM_SEQS + MAX_QUEUED + 1):
            # Sent, and not waited for: those that wait get no answer yet.
            connection = exits.enter_context(closing(HTTPConnection(address)))
            connection.request(
                "POST", "/v1/chat/completions", body, {"content-type": "application/json"}
            )
            setup.wait_load(min(number, MAX_NUM_SEQS), max(0, number - MAX_NUM_SEQS))
        response = setup.smg.post("/v1/chat/completions", json=CHAT)
        assert response.status_code == 429, response.text
        assert "queue is full" in response.json()["error"]["message"]
        load = setup.load()
        assert (load.num_running_reqs, load.num_waiting_reqs) == (MAX_NUM_SEQS, MAX_QUEUED)
    assert setup.wait_load(0, 0).token_usage == 0
