"""Reads the events of a generation, and puts whole outputs together from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagewire.client.types import (
    CompletionOutput,
    Delta,
    FinishReason,
    Logprob,
    Model,
    RequestOutput,
    TokenLogprobs,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from pagewire.v1 import common_pb2, inference_pb2

_FINISH_REASONS: dict[int, FinishReason] = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_ABORT: "abort",
    common_pb2.FINISH_REASON_ERROR: "error",
    common_pb2.FINISH_REASON_REPETITION: "repetition",
    common_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(slots=True)
class GenerationState:
    """What the events of one call said so far; `read` takes them in order."""

    request_id: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    is_admitted: bool = False
    is_complete: bool = False

    def read(self, response: Any) -> Delta | None:
        """Take an event of Generate or Chat; return what is new in an output, if anything."""
        kind = response.WhichOneof("event")
        if kind == "delta":
            return read_delta(response.delta)
        if kind == "finished":
            finished = response.finished
            return Delta(
                finished.index,
                finish_reason=finish_reason(finished),
                stop_reason=stop_reason(finished),
            )
        if kind == "started":
            self.is_admitted = True
            self.request_id, self.model = response.started.request_id, response.started.model
        elif kind == "usage":
            self.usage = read_usage(response.usage)
            self.is_complete = True
        return None


@dataclass(slots=True)
class OutputBuilder:
    """Puts the deltas of one index together."""

    index: int
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    calls: dict[int, list[ToolCallDelta]] = field(default_factory=dict)
    last: Delta | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.reasoning.append(delta.reasoning)
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *delta.logprobs]
        for call in delta.tool_calls:
            self.calls.setdefault(call.index, []).append(call)
        self.last = delta

    def build(self) -> CompletionOutput:
        return CompletionOutput(
            index=self.index,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            finish_reason=self.last.finish_reason if self.last else None,
            stop_reason=self.last.stop_reason if self.last else None,
            logprobs=tuple(self.logprobs) if self.logprobs is not None else None,
            reasoning="".join(self.reasoning),
            tool_calls=tuple(_whole_call(self.calls[index]) for index in sorted(self.calls)),
        )


class RequestBuilder:
    """Puts the deltas of one request together."""

    def __init__(self, prompt: Any = None) -> None:
        """Prepare.

        Args:
            prompt: A text or token ids that the answer shall name; None for conversations.
        """
        self._prompt = prompt
        self._outputs: dict[int, OutputBuilder] = {}
        self._prompt_logprobs: tuple[TokenLogprobs, ...] | None = None

    def add(self, delta: Delta) -> None:
        self._outputs.setdefault(delta.index, OutputBuilder(delta.index)).add(delta)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs

    def build(self, state: GenerationState) -> RequestOutput:
        prompt = self._prompt
        is_text = isinstance(prompt, str)
        return RequestOutput(
            request_id=state.request_id,
            outputs=tuple(self._outputs[index].build() for index in sorted(self._outputs)),
            usage=state.usage,
            model=state.model,
            prompt=prompt if is_text else None,
            prompt_token_ids=None if is_text or prompt is None else tuple(prompt),
            prompt_logprobs=self._prompt_logprobs,
        )


def read_delta(delta: Any) -> Delta:
    """Read a GenerationDelta or a ChatDelta."""
    common: dict[str, Any] = {
        "index": delta.index,
        "token_ids": tuple(delta.token_ids),
        "logprobs": _optional_logprobs(delta, "logprobs"),
        "prompt_logprobs": _optional_logprobs(delta, "prompt_logprobs"),
    }
    if isinstance(delta, inference_pb2.GenerationDelta):
        return Delta(text=delta.text, **common)
    calls = tuple(
        ToolCallDelta(call.index, call.id, call.name, call.arguments_json)
        for call in delta.tool_calls
    )
    return Delta(text=delta.content, reasoning=delta.reasoning, tool_calls=calls, **common)


def finish_reason(finished: inference_pb2.GenerationFinished) -> FinishReason | None:
    return _FINISH_REASONS.get(finished.finish_reason)


def stop_reason(finished: inference_pb2.GenerationFinished) -> int | str | None:
    matched = finished.WhichOneof("matched")
    if matched == "stop_string":
        return finished.stop_string
    return finished.stop_token_id if matched == "stop_token_id" else None


def read_usage(usage: common_pb2.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


def read_models(response: inference_pb2.ListModelsResponse) -> tuple[Model, ...]:
    return tuple(Model(each.id, each.max_model_len, each.created) for each in response.models)


def read_logprobs(columns: inference_pb2.TokenLogprobs) -> Iterator[TokenLogprobs]:
    """Yield a row a token."""
    place = 0
    for row, token_id in enumerate(columns.token_ids):
        token = Logprob(
            token_id, columns.logprobs[row], columns.ranks[row], columns.token_bytes[row]
        )
        end = place + (columns.top_counts[row] if row < len(columns.top_counts) else 0)
        top = (_top_token(columns, i, rank) for rank, i in enumerate(range(place, end), 1))
        yield TokenLogprobs(token, tuple(top))
        place = end


def _top_token(columns: inference_pb2.TokenLogprobs, i: int, rank: int) -> Logprob:
    return Logprob(
        columns.top_token_ids[i], columns.top_logprobs[i], rank, columns.top_token_bytes[i]
    )


def _optional_logprobs(delta: Any, name: str) -> tuple[TokenLogprobs, ...] | None:
    return tuple(read_logprobs(getattr(delta, name))) if delta.HasField(name) else None


def _whole_call(deltas: Sequence[ToolCallDelta]) -> ToolCall:
    first = deltas[0]
    return ToolCall(first.id, first.name, "".join(delta.arguments for delta in deltas))
