from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.engine_stream import EngineStream
from gateway.generation import Logprob
from gateway.logprobs import (
    LogprobRow,
    ids_to_spell,
    read_output_logprobs,
    read_prompt_logprobs,
    spell,
)
from gateway.streams import StreamLostError
from pagewire.v1 import common_pb2, scheduler_pb2
from tests.gateway.live import make_live


def frame(**changes: Any) -> scheduler_pb2.EngineOutputs:
    """Of two requests: one with a prompt of three tokens, one with a prompt of one."""
    columns = {
        "logprobs": [-1.0, -math.inf],
        "ranks": [1, 9],
        "top_counts": [2, 0],
        "top_token_ids": [5, 6],
        "top_logprobs": [-0.5, -0.75],
    }
    logprobs = {name: changes.pop(name, values) for name, values in columns.items()}
    outputs = {"prompt_logprob_handles": [7, 8], "prompt_logprob_counts": [2, 0], **changes}
    return scheduler_pb2.EngineOutputs(
        prompt_logprobs=common_pb2.LogprobColumns(**logprobs), **outputs
    )


PROMPT = [
    LogprobRow(-1.0, 1, [5, 6], [-0.5, -0.75]),
    LogprobRow(-math.inf, 9, [], []),
]


def test_each_prompt_token_but_the_first_has_its_own() -> None:
    assert dict(read_prompt_logprobs(frame())) == {7: PROMPT, 8: []}
    assert dict(read_prompt_logprobs(scheduler_pb2.EngineOutputs())) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_logprob_counts": [2]},
        {"prompt_logprob_counts": [2, 1]},
        {"ranks": [1]},
        {"top_counts": [2, 1]},
        {"top_logprobs": [-0.5]},
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_a_loss(changes: dict[str, Any]) -> None:
    with pytest.raises(StreamLostError):
        list(read_prompt_logprobs(frame(**changes)))


def test_the_stream_gives_them_to_their_requests() -> None:
    stream = EngineStream(Mock(), Mock(), Mock())
    live = Mock(waiting_prompt_logprobs=None)
    # The other one has ended meanwhile.
    stream._requests = {7: live}
    stream._take_outputs(frame())
    assert live.waiting_prompt_logprobs == PROMPT


def output_frame(**changes: Any) -> scheduler_pb2.EngineOutputs:
    """Of two requests with logprobs, with one token each, among three."""
    columns: dict[str, Any] = {"handles": [7, 8, 9], "token_counts": [1, 2, 1]}
    columns |= {"token_ids": [4, 5, 6, 7], "logprob_handles": [7, 9], **changes}
    return scheduler_pb2.EngineOutputs(logprobs=frame().prompt_logprobs, **columns)


def test_output_logprobs_are_as_many_as_their_request_has_new_tokens() -> None:
    assert read_output_logprobs(output_frame()) == {7: PROMPT[:1], 9: PROMPT[1:]}
    assert read_output_logprobs(scheduler_pb2.EngineOutputs()) == {}
    for changes in ({"token_counts": [1, 2, 2]}, {"logprob_handles": [7, 8]}, {"handles": [7]}):
        with pytest.raises(StreamLostError):
            read_output_logprobs(output_frame(**changes))


def test_tokens_are_spelled_in_the_order_in_which_their_bytes_are_asked_for() -> None:
    rows = [LogprobRow(-1.0, 3, [5, 6], [-0.5, -0.75]), LogprobRow(-2.0, 1, [], [])]
    asked = list(ids_to_spell([4, 9], rows))
    assert asked == [4, 5, 6, 9]
    first, second = spell([4, 9], rows, iter([bytes([each]) for each in asked]))
    assert first.token == Logprob(4, b"\x04", -1.0, 3)
    assert first.top == [Logprob(5, b"\x05", -0.5, 1), Logprob(6, b"\x06", -0.75, 2)]
    assert (second.token, second.top) == (Logprob(9, b"\x09", -2.0, 1), [])


async def test_an_engine_that_leaves_out_logprobs_fails_only_who_asked_for_them() -> None:
    sink = Mock()
    stream = EngineStream(Mock(), sink, Mock())
    asking, plain = make_live(logprobs=0), make_live(index=1)
    for request in (asking, plain):
        stream.add(request)
    handles = list(stream._requests)
    outputs = {"handles": handles, "token_counts": [1, 1], "token_ids": [4, 5]}
    stream._take_outputs(scheduler_pb2.EngineOutputs(**outputs))
    assert asking.is_over and not plain.is_over
    sink.forget.assert_called_once_with(asking)
    sink.push.assert_called_once_with([plain])
    assert stream.take_requests() == [plain]
