"""Live requests without a gateway around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.live_request import EngineFinish, EngineRequest, LiveRequest
from gateway.logprobs import LogprobRow
from gateway.output_collector import OutputCollector
from gateway.output_record import OutputRecord, PromptRecord
from gateway.request_metrics import RequestMetrics
from pagewire.sampling_params import SamplingParams
from tests.fakes.fake_tokenizer import EOS


def make_live(
    collector: OutputCollector | None = None,
    prompt: Sequence[int] = (1, 2),
    index: int = 0,
    **params: Any,
) -> LiveRequest:
    """A request that its engine has admitted."""
    request = EngineRequest(
        request_id=f"r-{index}",
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(**params),
        arrival_time_ns=1,
        deadline_ns=0,
    )
    eos = frozenset({EOS})
    live = LiveRequest(request, index, eos, collector or OutputCollector(10**6), make_record())
    live.admit()
    return live


def make_record(metrics: RequestMetrics | None = None, **prompt: Any) -> OutputRecord:
    """The record of the one output of a prompt."""
    values: dict[str, Any] = {
        "model_name": "m",
        "max_model_len": 100,
        "num_prompt_tokens": 2,
        "num_outputs": 1,
        "max_tokens": None,
        "arrived_s": 0.0,
    }
    return OutputRecord(PromptRecord(metrics or RequestMetrics(), **values | prompt))


def add_tokens(live: LiveRequest, *token_ids: int) -> None:
    """New output, with logprobs where they are asked for."""
    num_top = live.request.sampling_params.logprobs
    top = range(num_top or 0)
    rows = [
        LogprobRow(-1.0, 1, [each + i for i in top], [-1.0 - i for i in top]) for each in token_ids
    ]
    assert live.add_tokens(token_ids, rows if live.wants_logprobs else None)


def finish(live: LiveRequest, reason: Any, stop_token_id: int | None = None) -> None:
    live.engine_finish = EngineFinish(reason, stop_token_id)
