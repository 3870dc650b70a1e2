"""GenerateBatch: many prompts in one request, whole outputs in the answers."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.convert.conversation import invalid, read_messages, read_template
from gateway.convert.events import fill_tokens, finished_message, usage_message
from gateway.convert.requests import read_options
from gateway.generation import ChatPrompt, Finished, GenerationRequest, Output, Prompt, Usage
from gateway.live_generation import Generation
from pagewire.v1 import inference_pb2


def batch_request(
    message: inference_pb2.GenerateBatchRequest, timeout_s: float | None
) -> GenerationRequest:
    """Read a GenerateBatchRequest.

    Raises:
        InvalidRequestError: Names the field, and with it the prompt.
    """
    special = not message.HasField("add_special_tokens") or message.add_special_tokens
    prompts = tuple(_prompt(each, i, message) for i, each in enumerate(message.prompts))
    return read_options(message, prompts, timeout_s, add_special_tokens=special)


class WholeOutputs:
    """Puts the outputs of a generation together, and writes those that have ended."""

    def __init__(self, generation: Generation, n: int, with_token_ids: bool) -> None:
        """Prepare.

        Args:
            generation: Gives the outputs.
            n: Outputs of a prompt.
            with_token_ids: Also write token ids.
        """
        self._requests = generation.requests
        self._n = n
        self._with_token_ids = with_token_ids
        self._growing: dict[int, Output] = {}

    def take(self, outputs: Iterable[Output]) -> inference_pb2.GenerateBatchResponse | None:
        """Take what is new; return what ended with it, if anything did."""
        response = inference_pb2.GenerateBatchResponse()
        for output in outputs:
            whole = self._growing.pop(output.index, None)
            if whole is None:
                whole = output
            else:
                whole.extend(output)
            if whole.finished is None:
                self._growing[output.index] = whole
            else:
                self._write(whole, whole.finished, response)
        return response if response.outputs else None

    def _write(
        self, output: Output, finished: Finished, response: inference_pb2.GenerateBatchResponse
    ) -> None:
        prompt_index, index = divmod(output.index, self._n)
        request = self._requests[output.index]
        usage = Usage(
            prompt_tokens=len(request.request.prompt_token_ids),
            completion_tokens=request.num_delivered_tokens,
            cached_tokens=request.num_cached_tokens or 0,
        )
        message = response.outputs.add(
            prompt_index=prompt_index,
            output=inference_pb2.GenerationDelta(index=index, text=output.text),
            finished=finished_message(index, finished),
            usage=usage_message(usage),
        )
        fill_tokens(message.output, output, self._with_token_ids)
        if self._with_token_ids and index == 0:
            message.prompt_token_ids.extend(request.request.prompt_token_ids)


def _prompt(
    message: inference_pb2.BatchPrompt, index: int, batch: inference_pb2.GenerateBatchRequest
) -> Prompt:
    kind = message.WhichOneof("prompt")
    path = f"prompts[{index}]"
    if kind is None:
        raise invalid(path, "set text, token_ids or conversation")
    if kind == "text":
        return message.text
    if kind == "token_ids":
        return tuple(message.token_ids.ids)
    messages = read_messages(message.conversation.messages, f"{path}.conversation.messages")
    return ChatPrompt(messages=messages, **read_template(batch))
