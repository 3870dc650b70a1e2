"""`POST /v1/completions`: the body's fields, and the shape of the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gateway.generation import GenerationRequest, Output, Prompt
from gateway.http.answers import Call, object_head, stop_reason
from gateway.http.fields import Fields, check_integer, check_text, invalid, wrong_type
from gateway.http.logprobs import CompletionLogprobs, TokenFormat, prompt_logprobs
from gateway.http.parameters import read_logprob_token_ids, read_request, read_stream
from gateway.live_generation import Generation
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import MAX_LOGPROBS

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""

# Names that not all endpoints honour.
_SUPPORTED = ("logprob_token_ids",)


def read_completion(fields: Fields, max_prompts: int) -> Call:
    """Return what the body asks for.

    Args:
        fields: The body.
        max_prompts: More are refused before they are looked at.

    Raises:
        InvalidRequestError: Names the field.
    """
    prompts = _read_prompts(fields.get("prompt"), max_prompts)
    request = replace(
        read_request(fields, prompts, ("max_tokens",), _SUPPORTED),
        default_max_tokens=DEFAULT_MAX_TOKENS,
        add_special_tokens=fields.boolean("add_special_tokens", default=True),
        echo=fields.boolean("echo"),
    )
    num_logprobs = fields.integer("logprobs")
    named = _read_named(fields, request, num_logprobs)
    shape = CompletionShape(
        echo=request.echo,
        num_logprobs=num_logprobs,
        num_named=len(named),
        num_prompt_logprobs=fields.integer("prompt_logprobs"),
        token_format=TokenFormat(fields.boolean("return_tokens_as_token_ids")),
        return_token_ids=fields.boolean("return_token_ids"),
    )
    request = _with_logprobs(request, num_logprobs, named)
    return Call(_without_output(request), shape, read_stream(fields))


class CompletionShape:
    """Implements `answers.Shape`."""

    def __init__(
        self,
        echo: bool,
        num_logprobs: int | None,
        num_named: int,
        num_prompt_logprobs: int | None,
        token_format: TokenFormat,
        return_token_ids: bool,
    ) -> None:
        self._echo = echo
        self._num_prompt_logprobs = num_prompt_logprobs
        self._return_token_ids = return_token_ids
        self._logprobs: CompletionLogprobs | None = None
        if num_logprobs is not None:
            self._logprobs = CompletionLogprobs(num_logprobs, token_format, num_named)
        self._begun: set[int] = set()

    def first_chunks(self, generation: Generation) -> Iterable[dict[str, Any]]:
        return ()

    def chunks(self, generation: Generation, output: Output) -> Iterable[dict[str, Any]]:
        is_news = output.text or output.finished or output.logprobs or self._return_token_ids
        if is_news or (self._echo and output.index not in self._begun):
            yield self._object(generation, [self._choice(generation, output)])

    def plain_text(self, output: Output) -> str | None:
        if output.finished or self._logprobs or output.prompt_logprobs or self._return_token_ids:
            return None
        return output.text if output.index in self._begun else None

    def text_chunk(self, generation: Generation, index: int, text: str) -> dict[str, Any]:
        return self._object(generation, [self._choice(generation, Output(index, text))])

    def usage_chunk(self, generation: Generation) -> dict[str, Any]:
        return self._object(generation, [])

    def whole(self, generation: Generation, outputs: list[Output]) -> dict[str, Any]:
        return self._object(generation, [self._choice(generation, each) for each in outputs])

    def _object(self, generation: Generation, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return object_head(generation, "cmpl", "text_completion") | {"choices": choices}

    def _choice(self, generation: Generation, output: Output) -> dict[str, Any]:
        is_first = output.index not in self._begun
        self._begun.add(output.index)
        text = output.text
        if self._echo and is_first:
            text = generation.prompt_texts[generation.prompt_of(output.index)] + text
        choice: dict[str, Any] = {
            "index": output.index,
            "text": text,
            "logprobs": self._write_logprobs(generation, output),
            "finish_reason": output.finished.reason if output.finished else None,
            "stop_reason": stop_reason(output),
        }
        if self._num_prompt_logprobs is not None and output.prompt_logprobs is not None:
            places = output.prompt_logprobs
            choice["prompt_logprobs"] = prompt_logprobs(places, self._num_prompt_logprobs)
        if self._return_token_ids:
            choice["token_ids"] = output.token_ids
            if is_first:
                choice["prompt_token_ids"] = list(generation.prompt_token_ids(output.index))
        return choice

    def _write_logprobs(self, generation: Generation, output: Output) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        first = generation.prompt_token_ids(output.index)[0] if self._echo else None
        return self._logprobs.write(output, first)


def _read_named(
    fields: Fields, request: GenerationRequest, num_logprobs: int | None
) -> tuple[int, ...]:
    """Read the tokens that are reported in place of the likeliest ones, by vLLM's rules."""
    token_ids = read_logprob_token_ids(fields)
    if not token_ids:
        return ()
    if num_logprobs is None:
        raise invalid("logprob_token_ids", "needs logprobs, such as logprobs=0")
    if not 0 <= num_logprobs <= MAX_LOGPROBS:
        raise invalid("logprobs", f"must be between 0 and {MAX_LOGPROBS}")
    if request.echo and request.sampling.get("max_tokens") == 0:
        rule = "needs an output, which echo with max_tokens=0 has not"
        raise invalid("logprob_token_ids", rule)
    return token_ids


def _with_logprobs(
    request: GenerationRequest, num_logprobs: int | None, named: tuple[int, ...]
) -> GenerationRequest:
    """Ask for the output's logprobs, and for the prompt's too where it is echoed."""
    if num_logprobs is None:
        return request
    # The likeliest tokens give way to those that are named.
    asked = {"logprob_token_ids": named} if named else {"logprobs": num_logprobs}
    sampling = {**request.sampling, **asked}
    if request.echo:
        sampling["prompt_logprobs"] = max(num_logprobs, sampling.get("prompt_logprobs", 0))
    return replace(request, sampling=sampling)


def _without_output(request: GenerationRequest) -> GenerationRequest:
    """With echo, max_tokens=0 asks for the prompt alone; an engine draws at least one token."""
    if not request.echo or request.sampling.get("max_tokens") != 0:
        return request
    return replace(request, prompt_only=True, sampling={**request.sampling, "max_tokens": 1})


def _read_prompts(value: Any, max_prompts: int) -> tuple[Prompt, ...]:
    """Read a text, token ids, or an array of either."""
    if isinstance(value, str):
        return (check_text(value, "prompt"),)
    if value is None:
        raise invalid("prompt", "is required: give a string, token ids, or an array of them")
    if not isinstance(value, list):
        raise wrong_type("prompt", value, "a string, token ids, or an array of them")
    if not value:
        raise invalid("prompt", "must not be empty")
    if not isinstance(value[0], str | list):
        return (_read_token_ids(value, "prompt"),)
    if len(value) > max_prompts:
        raise InvalidRequestError(
            f"prompt: {len(value)} prompts are too many; at most {max_prompts} are taken",
            reason="TOO_MANY_OUTPUTS",
            field="prompt",
        )
    return tuple(_read_prompt(each, f"prompt[{i}]") for i, each in enumerate(value))


def _read_prompt(value: Any, path: str) -> Prompt:
    return _read_token_ids(value, path) if isinstance(value, list) else check_text(value, path)


def _read_token_ids(values: list[Any], path: str) -> tuple[int, ...]:
    if not values:
        raise invalid(path, "must not be empty")
    if all(type(value) is int for value in values):
        return tuple(values)
    return tuple(check_integer(value, f"{path}[{i}]") for i, value in enumerate(values))
