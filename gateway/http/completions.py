"""`POST /v1/completions`: the body's fields, and the shape of the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.generation import GenerationRequest, Output, Prompt
from gateway.http.answers import stop_reason
from gateway.http.fields import Fields, check_integer, check_text, invalid, wrong_type
from gateway.http.parameters import (
    read_cache_salt,
    read_n,
    read_priority,
    read_sampling,
    refuse_unsupported,
)
from gateway.live_generation import Generation
from pagewire.kit.errors import InvalidRequestError

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


def read_completion(fields: Fields, max_prompts: int) -> GenerationRequest:
    """Return what the body asks for.

    Args:
        fields: The body.
        max_prompts: More are refused before they are looked at.

    Raises:
        InvalidRequestError: Names the field.
    """
    refuse_unsupported(fields)
    return GenerationRequest(
        model=fields.text("model") or "",
        prompts=_read_prompts(fields.get("prompt"), max_prompts),
        sampling=read_sampling(fields, ("max_tokens",)),
        n=read_n(fields),
        default_max_tokens=DEFAULT_MAX_TOKENS,
        cache_salt=read_cache_salt(fields),
        priority=read_priority(fields),
        add_special_tokens=fields.boolean("add_special_tokens", default=True),
    )


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """Implements `answers.Shape`."""

    return_token_ids: bool = False

    def first_chunks(self, generation: Generation) -> Iterable[dict[str, Any]]:
        return ()

    def chunks(self, generation: Generation, output: Output) -> Iterable[dict[str, Any]]:
        if output.text or output.finished or self.return_token_ids:
            yield self._object(generation, [self._choice(output)])

    def usage_chunk(self, generation: Generation) -> dict[str, Any]:
        return self._object(generation, [])

    def whole(self, generation: Generation, outputs: list[Output]) -> dict[str, Any]:
        return self._object(generation, [self._choice(output) for output in outputs])

    def _object(self, generation: Generation, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{generation.request_id}",
            "object": "text_completion",
            "created": generation.created,
            "model": generation.model,
            "choices": choices,
        }

    def _choice(self, output: Output) -> dict[str, Any]:
        choice = {
            "index": output.index,
            "text": output.text,
            "logprobs": None,
            "finish_reason": output.finished.reason if output.finished else None,
            "stop_reason": stop_reason(output),
        }
        return choice | ({"token_ids": output.token_ids} if self.return_token_ids else {})


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
