"""What a generation gives, as events of the public contract.

Generate and Chat have the same events but for their deltas: `GenerateEvents` writes those of
Generate, `chat.ChatEvents` those of Chat; the order of events is the servicer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.convert.logprobs import token_logprobs
from gateway.generation import Finished, FinishReason, Output, Usage
from gateway.live_generation import Generation
from pagewire.v1 import common_pb2, inference_pb2

Delta = inference_pb2.GenerationDelta | inference_pb2.ChatDelta
Response = inference_pb2.GenerateResponse | inference_pb2.ChatResponse

_FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.REPETITION: common_pb2.FINISH_REASON_REPETITION,
}


class Events(Protocol):
    """How one method writes its events."""

    def started(self, generation: Generation) -> Response:
        """Return the first event."""

    def outputs(self, outputs: Iterable[Output]) -> Iterator[Response]:
        """Yield deltas for what is new, and a finish for what ended."""

    def usage(self, usage: Usage) -> Response:
        """Return the last event."""


@dataclass(frozen=True, slots=True)
class GenerateEvents:
    """Implements `Events` for Generate."""

    with_token_ids: bool

    def started(self, generation: Generation) -> Response:
        return inference_pb2.GenerateResponse(started=started_message(generation))

    def outputs(self, outputs: Iterable[Output]) -> Iterator[Response]:
        for output in outputs:
            response = inference_pb2.GenerateResponse()
            delta = response.delta
            delta.index, delta.text = output.index, output.text
            if fill_tokens(delta, output, self.with_token_ids) or output.text:
                yield response
            if output.finished is not None:
                finished = finished_message(output.index, output.finished)
                yield inference_pb2.GenerateResponse(finished=finished)

    def usage(self, usage: Usage) -> Response:
        return inference_pb2.GenerateResponse(usage=usage_message(usage))


def finished_message(index: int, finished: Finished) -> inference_pb2.GenerationFinished:
    message = inference_pb2.GenerationFinished(
        index=index, finish_reason=_FINISH_REASONS[finished.reason]
    )
    if finished.stop_string is not None:
        message.stop_string = finished.stop_string
    elif finished.stop_token_id is not None:
        message.stop_token_id = finished.stop_token_id
    elif finished.eos_token_id is not None:
        message.eos_token_id = finished.eos_token_id
    return message


def usage_message(usage: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def started_message(generation: Generation) -> inference_pb2.GenerationStarted:
    return inference_pb2.GenerationStarted(
        request_id=generation.request_id,
        model=generation.model,
        prompt_tokens=generation.usage.prompt_tokens,
        created=generation.created,
    )


def fill_tokens(delta: Delta, output: Output, with_token_ids: bool) -> bool:
    """Write what is known of the tokens of a delta's text; those of the prompt on index 0.

    Returns:
        Whether there was anything to write.
    """
    is_news = False
    if with_token_ids and output.token_ids:
        delta.token_ids.extend(output.token_ids)
        is_news = True
    if output.logprobs:
        delta.logprobs.CopyFrom(token_logprobs(output.logprobs))
        is_news = True
    if output.prompt_logprobs is not None and delta.index == 0:
        rows = (place for place in output.prompt_logprobs if place is not None)
        delta.prompt_logprobs.CopyFrom(token_logprobs(rows))
        is_news = True
    return is_news
