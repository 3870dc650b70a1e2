"""Token ids of requests over HTTP: one at a time, or many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from pagewire.sampling_params import SamplingParams

TIMEOUT_S = 900.0
"""Of one answer: a machine that is shared may be very slow; the tests have bounds of their own."""
_SENT = (
    "temperature",
    "top_p",
    "seed",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "allowed_token_ids",
    "thinking_token_budget",
)


@dataclass(frozen=True)
class TokenRequest:
    """A prompt of token ids, and what is asked for."""

    prompt: tuple[int, ...]
    params: SamplingParams

    def body(self) -> dict[str, Any]:
        values = {name: getattr(self.params, name) for name in _SENT}
        given = {name: value for name, value in values.items() if value not in (None, ())}
        return {"prompt": list(self.prompt), "return_token_ids": True, **given}


@asynccontextmanager
async def http_client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client that opens as many connections as there are requests."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
        yield client


async def post(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Post a body; return the answer, which must be one."""
    response = await client.post(path, json=dict(body))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def complete(client: httpx.AsyncClient, request: TokenRequest) -> list[int]:
    answer = await post(client, "/v1/completions", request.body())
    token_ids: list[int] = answer["choices"][0]["token_ids"]
    return token_ids


async def one_by_one(url: str, requests: Sequence[TokenRequest]) -> list[list[int]]:
    """Token ids of requests that each have the stack to themselves."""
    async with http_client(url) as client:
        return [await complete(client, request) for request in requests]


async def together(url: str, requests: Sequence[TokenRequest]) -> list[list[int]]:
    """Token ids of requests that all start at once."""
    async with http_client(url) as client:
        return list(await asyncio.gather(*(complete(client, each) for each in requests)))
