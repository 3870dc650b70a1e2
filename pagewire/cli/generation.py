"""Requests of the command line over the public gRPC API: parameters, streaming, one-line errors.

Used by `chat` and `complete`. It prints nothing and knows no terminal: text comes out as an
iterator. Whoever stops iterating cancels the call, which aborts the request in the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from pagewire.kit.errors import PagewireError, ServiceUnavailableError, from_rpc_error
from pagewire.v1 import inference_pb2, inference_pb2_grpc

DEFAULT_TARGET = "127.0.0.1:50050"

R = TypeVar("R", inference_pb2.ChatResponse, inference_pb2.GenerateResponse)


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """How the answer is made."""

    max_tokens: int | None = None
    """Most tokens of the answer. Default: 16 for complete, the rest of the context for chat."""
    temperature: float = 0.0
    """Default 0: always the most likely token, so that an answer can be had again. Higher is more
    varied."""
    top_p: float | None = None
    """Draw from the most likely tokens that together have this probability."""
    seed: int | None = None
    """Makes a drawn answer repeatable."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and not 1 <= self.max_tokens < 2**32:
            raise ValueError("max_tokens", self.max_tokens, "must be at least 1")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ValueError("seed", self.seed, "must be between 0 and 2**64 - 1")

    def sampling(self) -> inference_pb2.SamplingOptions:
        return inference_pb2.SamplingOptions(
            temperature=self.temperature, top_p=self.top_p, seed=self.seed
        )

    def stopping(self) -> inference_pb2.StoppingOptions:
        return inference_pb2.StoppingOptions(max_tokens=self.max_tokens)


@dataclass(frozen=True, slots=True)
class ConnectedGateway:
    """Where requests go."""

    channel: grpc.aio.Channel
    target: str
    """Its address, for messages."""

    @property
    def stub(self) -> inference_pb2_grpc.InferenceServiceAsyncStub:
        return inference_pb2_grpc.InferenceServiceStub(self.channel)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str


async def stream_chat(
    gateway: ConnectedGateway,
    messages: Sequence[Message],
    flags: SamplingFlags,
    api_key: str | None,
) -> AsyncGenerator[str]:
    """Yield the answer's text as it comes.

    Raises:
        PagewireError: The request was refused or failed.
    """
    request = inference_pb2.ChatRequest(
        messages=[inference_pb2.ChatMessage(role=m.role, content=m.content) for m in messages],
        sampling=flags.sampling(),
        stopping=flags.stopping(),
    )
    call = gateway.stub.Chat(request, metadata=_metadata(api_key))
    async with aclosing(_texts(call, gateway.target)) as texts:
        async for text in texts:
            yield text


async def stream_completion(
    gateway: ConnectedGateway, prompt: str, flags: SamplingFlags, api_key: str | None
) -> AsyncGenerator[str]:
    """Yield the continuation of the prompt as it comes.

    Raises:
        PagewireError: The request was refused or failed.
    """
    request = inference_pb2.GenerateRequest(
        text=prompt, sampling=flags.sampling(), stopping=flags.stopping()
    )
    call = gateway.stub.Generate(request, metadata=_metadata(api_key))
    async with aclosing(_texts(call, gateway.target)) as texts:
        async for text in texts:
            yield text


async def _texts(call: grpc.aio.UnaryStreamCall[Any, R], target: str) -> AsyncGenerator[str]:
    """Yield the text of the deltas; cancel the call when it is left early."""
    try:
        async for response in call:
            delta = response.delta
            text = delta.content if isinstance(delta, inference_pb2.ChatDelta) else delta.text
            if text:
                yield text
    except grpc.aio.AioRpcError as exc:
        raise _readable(exc, target) from exc
    finally:
        call.cancel()


def _metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {api_key}"),) if api_key else ()


def _readable(exc: grpc.aio.AioRpcError, target: str) -> PagewireError:
    error = from_rpc_error(exc)
    if error.reason == "PEER_UNAVAILABLE":  # the transport's word: there are no details of ours
        return ServiceUnavailableError(
            f"the connection to the gateway at {target} was lost", reason=error.reason
        )
    return error
