"""Tests of how answers are read and put together."""

from __future__ import annotations

import pytest

from pagewire.client.responses import GenerationState, RequestBuilder
from pagewire.client.types import Logprob, ToolCall, Usage
from pagewire.v1 import common_pb2, inference_pb2


def generate_events(*events):
    return [inference_pb2.GenerateResponse(**event) for event in events]


def chat_events(*events):
    return [inference_pb2.ChatResponse(**event) for event in events]


def read(events, prompt=None):
    state, builder = GenerationState(), RequestBuilder(prompt)
    for event in events:
        if (delta := state.read(event)) is not None:
            builder.add(delta)
    assert state.is_complete
    return builder.build(state)


def finished(index=0, **matched):
    reason = matched.pop("finish_reason", common_pb2.FINISH_REASON_STOP)
    return {
        "finished": inference_pb2.GenerationFinished(index=index, finish_reason=reason, **matched)
    }


def delta(text, index=0, **more):
    return {"delta": inference_pb2.GenerationDelta(index=index, text=text, **more)}


STARTED = {"started": inference_pb2.GenerationStarted(request_id="r", model="m", prompt_tokens=3)}
USAGE = {"usage": common_pb2.Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=1)}


def test_the_outputs_of_a_request_are_put_together_by_index():
    output = read(
        generate_events(
            STARTED,
            delta("a", 1, token_ids=[1]),
            delta("x", token_ids=[7]),
            delta("b", 1, token_ids=[2]),
            finished(1, stop_string="c"),
            finished(0, finish_reason=common_pb2.FINISH_REASON_LENGTH),
            USAGE,
        ),
        "Hi",
    )
    assert (output.request_id, output.model, output.prompt) == ("r", "m", "Hi")
    assert [o.text for o in output.outputs] == ["x", "ab"]
    assert [o.token_ids for o in output.outputs] == [(7,), (1, 2)]
    assert [o.finish_reason for o in output.outputs] == ["length", "stop"]
    assert [o.stop_reason for o in output.outputs] == [None, "c"]
    assert output.usage == Usage(3, 4, 1)
    assert output.usage.total_tokens == 7 and output.num_cached_tokens == 1
    assert output.text == "x" and output.outputs[0].logprobs is None


@pytest.mark.parametrize(
    ("matched", "reason"), [({"stop_token_id": 9}, 9), ({"eos_token_id": 2}, None), ({}, None)]
)
def test_a_stop_token_is_told_and_an_end_of_sequence_is_not(matched, reason):
    output = read(generate_events(STARTED, finished(**matched), USAGE), [5])
    assert output.outputs[0].stop_reason == reason
    assert output.prompt is None and output.prompt_token_ids == (5,)


def test_logprobs_are_rows_with_their_likeliest_tokens():
    first = inference_pb2.TokenLogprobs(
        token_ids=[5], token_bytes=[b"a"], logprobs=[-1.0], ranks=[3], top_counts=[2],
        top_token_ids=[8, 9], top_token_bytes=[b"x", b"\xc3"], top_logprobs=[-0.25, -0.5],
    )  # fmt: skip
    second = inference_pb2.TokenLogprobs(
        token_ids=[6], token_bytes=[b"b"], logprobs=[-2.0], ranks=[1], top_counts=[0]
    )
    output = read(
        generate_events(
            STARTED,
            delta("a", logprobs=first, prompt_logprobs=second),
            delta("b", logprobs=second),
            finished(),
            USAGE,
        )
    )
    rows = output.outputs[0].logprobs
    assert rows is not None and output.prompt_logprobs is not None
    assert rows[0].token == Logprob(5, -1.0, 3, b"a")
    assert rows[0].top == (Logprob(8, -0.25, 1, b"x"), Logprob(9, -0.5, 2, b"\xc3"))
    assert rows[0].top[1].decoded_token == "�"
    assert (rows[1].token.token_id, rows[1].top) == (6, ())
    assert [row.token.token_id for row in output.prompt_logprobs] == [6]


def test_reasoning_and_tool_calls_of_a_chat_are_put_together():
    def call(index, **fields):
        return {
            "delta": inference_pb2.ChatDelta(
                tool_calls=[inference_pb2.ToolCallDelta(index=index, **fields)]
            )
        }

    output = read(
        chat_events(
            STARTED,
            {"delta": inference_pb2.ChatDelta(reasoning="h")},
            {"delta": inference_pb2.ChatDelta(reasoning="m", content="So")},
            call(1, id="2", name="g"),
            call(0, id="1", name="f", arguments_json='{"a"'),
            call(0, arguments_json=": 1}"),
            finished(finish_reason=common_pb2.FINISH_REASON_TOOL_CALLS),
            USAGE,
        )
    )
    (answer,) = output.outputs
    assert (answer.reasoning, answer.text, answer.finish_reason) == ("hm", "So", "tool_calls")
    assert answer.tool_calls == (ToolCall("1", "f", '{"a": 1}'), ToolCall("2", "g", ""))
