"""Prompts cut into batches of one call each, and whole outputs put together per prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagewire.client.requests import chat_messages, set_common, set_prompt, set_template
from pagewire.client.responses import finish_reason, read_delta, read_usage, stop_reason
from pagewire.client.types import CompletionOutput, RequestOutput, TokenLogprobs, Usage
from pagewire.offline.prompts import OfflinePrompt
from pagewire.v1 import inference_pb2

# A call stays far below the largest message; one prompt may exceed this alone.
_MAX_BATCH_BYTES = 1024 * 1024

DEFAULT_MAX_TOKENS = 16
"""Of texts and token ids without sampling parameters, as everywhere in the API."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What all prompts of one `LLM` call have in common."""

    n: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """`RequestOptions` and `TemplateOptions` besides sampling parameters."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts of one call, all with the same parameters."""

    prompts: tuple[OfflinePrompt, ...]

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.prompts) // 2
        return Batch(self.prompts[:middle]), Batch(self.prompts[middle:])


def cut(prompts: Sequence[OfflinePrompt], max_prompts: int) -> Iterator[Batch]:
    """Yield batches in the order of the prompts.

    Args:
        prompts: All of them.
        max_prompts: Most in one batch.
    """
    waiting: list[OfflinePrompt] = []
    size = 0
    for prompt in prompts:
        is_full = len(waiting) >= max_prompts or size + prompt.size > _MAX_BATCH_BYTES
        if waiting and (is_full or prompt.params != waiting[0].params):
            yield Batch(tuple(waiting))
            waiting, size = [], 0
        waiting.append(prompt)
        size += prompt.size
    if waiting:
        yield Batch(tuple(waiting))


def batch_message(batch: Batch, call: CallOptions) -> inference_pb2.GenerateBatchRequest:
    """Return the request of a batch.

    Raises:
        InvalidRequestError: A prompt or a value cannot be sent.
    """
    request = inference_pb2.GenerateBatchRequest(
        add_special_tokens=call.options.get("add_special_tokens")
    )
    first = batch.prompts[0]
    params: dict[str, Any] = {"sampling_params": first.params}
    if first.params is None:
        params = {} if first.is_conversation else {"max_tokens": DEFAULT_MAX_TOKENS}
    set_common(request, {**call.options, **params, "n": call.n, "return_token_ids": True})
    set_template(request, call.options)
    for prompt in batch.prompts:
        message = request.prompts.add()
        if prompt.is_conversation:
            message.conversation.messages.extend(chat_messages(prompt.content))  # type: ignore[arg-type]
        else:
            set_prompt(message, prompt.content)  # type: ignore[arg-type]
    return request


class BatchResult:
    """The outputs of one batch as they come."""

    def __init__(self, batch: Batch, n: int, request_id: str) -> None:
        """Prepare.

        Args:
            batch: What was asked.
            n: Outputs of a prompt.
            request_id: Of the call; each prompt's is made from it.
        """
        self._batch = batch
        self._n = n
        self._request_id = request_id
        self._growing: dict[int, _Prompt] = {}
        self._num_whole = [0] * len(batch.prompts)

    def take(
        self, response: inference_pb2.GenerateBatchResponse
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Yield the prompts that are whole with this: place in the `LLM` call, and output."""
        for message in response.outputs:
            place = message.prompt_index
            growing = self._growing.setdefault(place, _Prompt())
            growing.add(message)
            self._num_whole[place] += 1
            if self._num_whole[place] == self._n:
                prompt = self._batch.prompts[place]
                yield prompt.index, self._growing.pop(place).build(prompt, self._request_id)

    def missing(self) -> Batch:
        """Return the prompts that are not whole."""
        return Batch(
            tuple(
                prompt
                for prompt, num_whole in zip(self._batch.prompts, self._num_whole, strict=True)
                if num_whole < self._n
            )
        )


@dataclass(slots=True)
class _Prompt:
    """The outputs of one prompt that have come."""

    outputs: dict[int, CompletionOutput] = field(default_factory=dict)
    prompt_token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, message: inference_pb2.BatchOutput) -> None:
        delta = read_delta(message.output)
        self.outputs[delta.index] = CompletionOutput(
            index=delta.index,
            text=delta.text,
            token_ids=delta.token_ids,
            finish_reason=finish_reason(message.finished),
            stop_reason=stop_reason(message.finished),
            logprobs=delta.logprobs,
        )
        usage = read_usage(message.usage)
        self.prompt_tokens = usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        if delta.index == 0:
            self.prompt_token_ids = tuple(message.prompt_token_ids)
            self.prompt_logprobs = delta.prompt_logprobs
            self.cached_tokens = usage.cached_tokens

    def build(self, prompt: OfflinePrompt, request_id: str) -> RequestOutput:
        content = prompt.content
        return RequestOutput(
            request_id=f"{request_id}-{prompt.index}",
            outputs=tuple(self.outputs[index] for index in sorted(self.outputs)),
            usage=Usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens),
            prompt=content if isinstance(content, str) else None,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=self.prompt_logprobs,
        )
