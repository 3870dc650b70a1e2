"""`POST /tokenize` and `/detokenize`, vLLM's routes between texts and ids; `/tokenizer_info`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.generation import ChatPrompt
from gateway.http.chat_tools import read_tools
from gateway.http.conversation import read_conversation
from gateway.http.fields import Fields, invalid
from gateway.http.json_response import json_response
from gateway.token_service import TokenService

_OF_CONVERSATIONS = (
    *("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs"),
    *("documents", "reasoning_effort", "tools", "tool_choice", "parallel_tool_calls"),
)

ReadFields = Callable[[Request, Callable[[Fields], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class TokenizeCall:
    """What a body of /tokenize asks for."""

    model: str
    prompt: str | ChatPrompt
    add_special_tokens: bool
    return_token_strs: bool


@dataclass(frozen=True, slots=True)
class DetokenizeCall:
    """What a body of /detokenize asks for."""

    model: str
    token_ids: tuple[int, ...]


def read_tokenize(fields: Fields) -> TokenizeCall:
    """Return what the body asks for.

    Raises:
        InvalidRequestError: Names the field.
    """
    prompt: str | ChatPrompt | None = fields.text("prompt")
    special = fields.boolean("add_special_tokens", default=True)
    if fields.get("messages") is not None:
        if prompt is not None:
            raise invalid("messages", "excludes prompt: give one of them")
        tools = read_tools(fields)
        prompt = replace(read_conversation(fields), tools_json=tools.template_json)
    if prompt is None:
        raise invalid("prompt", "is required: give a string, or messages")
    if isinstance(prompt, str):
        for name in _OF_CONVERSATIONS:
            if fields.get(name) is not None:
                raise invalid(name, "says something of messages: give them in place of prompt")
    return TokenizeCall(
        model=fields.text("model") or "",
        prompt=prompt,
        add_special_tokens=special,
        return_token_strs=fields.boolean("return_token_strs"),
    )


def read_detokenize(fields: Fields) -> DetokenizeCall:
    """Return what the body asks for.

    Raises:
        InvalidRequestError: Names the field.
    """
    token_ids = fields.integers("tokens")
    if token_ids is None:
        raise invalid("tokens", "is required: give an array of token ids")
    return DetokenizeCall(fields.text("model") or "", token_ids)


class TokenizeRoutes:
    """The endpoints."""

    def __init__(self, tokens: TokenService, read: ReadFields) -> None:
        self._tokens = tokens
        self._read = read

    async def tokenize(self, request: Request) -> Response:
        call: TokenizeCall = await self._read(request, read_tokenize)
        tokenized = await self._tokens.tokenize(call.model, call.prompt, call.add_special_tokens)
        ids = list(tokenized.token_ids)
        texts = await self._tokens.token_texts(ids) if call.return_token_strs else None
        return json_response(
            {
                "count": len(ids),
                "max_model_len": tokenized.max_model_len,
                "tokens": ids,
                "token_strs": texts,
            }
        )

    async def tokenizer_info(self, request: Request) -> Response:
        return json_response(await self._tokens.tokenizer_info())

    async def detokenize(self, request: Request) -> Response:
        call: DetokenizeCall = await self._read(request, read_detokenize)
        text = await self._tokens.detokenize(call.model, call.token_ids, False, "tokens")
        return json_response({"prompt": text})
