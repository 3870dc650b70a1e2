from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.engine_stream import EngineStream
from gateway.logprobs import LogprobRow, read_prompt_logprobs
from gateway.streams import StreamLostError
from pagewire.v1 import common_pb2, scheduler_pb2


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
