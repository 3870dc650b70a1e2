"""`AsyncClient`: the public gRPC API for asyncio programs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack, cast

import grpc

from pagewire.client import requests, responses
from pagewire.client.aio_retrying import AsyncPauses, AsyncRetryingStream, call_unary
from pagewire.client.errors import incomplete_answer, readable, request_cancelled
from pagewire.client.options import ChatOptions, GenerateOptions, TokenizeOptions
from pagewire.client.requests import Conversation, Prompt
from pagewire.client.responses import GenerationState, RequestBuilder
from pagewire.client.retry_policy import Attempts
from pagewire.client.retrying import Start
from pagewire.client.transport import DEFAULT_ADDRESS, Endpoint, Tls
from pagewire.client.types import Delta, Model, RequestOutput, Usage
from pagewire.v1 import inference_pb2, inference_pb2_grpc


class AsyncGenerationStream:
    """What is new in a generation, as it comes: an asynchronous iterator of `Delta`.

    Leaving it early cancels the request, and so does the end of the task that reads it: use it in
    `async with`, or call `cancel`. Read by one task.
    """

    def __init__(self, call: AsyncRetryingStream, target: str) -> None:
        self._call = call
        self._target = target
        self._state = GenerationState()

    @property
    def request_id(self) -> str:
        """Of this request; empty until it is admitted."""
        return self._state.request_id

    @property
    def model(self) -> str:
        """The name of the model that answers; empty until the request is admitted."""
        return self._state.model

    @property
    def usage(self) -> Usage:
        """Token counts; known once the iteration has ended."""
        return self._state.usage

    def cancel(self) -> None:
        """End the request and free what it holds in the engine; idempotent."""
        self._call.cancel()

    async def collect(self, prompt: Prompt | None = None) -> RequestOutput:
        """Read to the end, and return the whole outputs.

        Raises:
            PagewireError: As the iteration does.
        """
        builder = RequestBuilder(prompt)
        async for delta in self:
            builder.add(delta)
        return builder.build(self._state)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """Return the next delta.

        Raises:
            PagewireError: The request was refused or failed.
            RequestCancelledError: `cancel` was called.
        """
        while (response := await self._read()) is not grpc.aio.EOF:
            if (delta := self._state.read(response)) is not None:
                return delta
        if not self._state.is_complete:
            raise incomplete_answer(self._target)
        raise StopAsyncIteration

    async def _read(self) -> Any:
        try:
            return await self._call.read()
        except grpc.aio.AioRpcError as exc:
            raise readable(exc, self._target) from exc
        except asyncio.CancelledError:
            if self._call.is_cancelled:
                raise request_cancelled() from None
            self._call.cancel()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()


class AsyncClient:
    """A client of one gateway or several. Belongs to the event loop that it is first used in.

    ```python
    async with AsyncClient("127.0.0.1:50050") as client:
        answer = await client.chat("What is the capital of France?", temperature=0)
        print(answer.text)
        async for delta in client.chat_stream("And of Italy?"):
            print(delta.text, end="")
    ```

    Calls that fail because a gateway is away are tried again (a few seconds in all) as long as
    nothing was admitted. All methods raise `pagewire.errors.PagewireError`: its class tells the
    kind, `reason` the cause for programs, `field` what is wrong with a request.
    """

    def __init__(
        self,
        address: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        api_key: str | None = None,
        tls: Tls | bool = False,
        timeout: float | None = None,
        retry: bool = True,
    ) -> None:
        """Prepare; connecting happens at the first call.

        Args:
            address: `host:port`, `dns:///name:port`, `unix:/path`, or several IP addresses with
                ports; calls go round them.
            api_key: Sent as a bearer token.
            tls: True: the server's certificate is checked against well-known authorities.
            timeout: Seconds that a call without a timeout of its own gets; None: no limit here.
            retry: Try again where nothing was admitted.

        Raises:
            ValueError: The address or the key has no right form.
        """
        self._endpoint = Endpoint(address, api_key, tls, retry)
        self._timeout = timeout
        self._pauses = AsyncPauses()
        self._channel: grpc.aio.Channel | None = None
        self._methods: inference_pb2_grpc.InferenceServiceAsyncStub | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def target(self) -> str:
        """Where it connects, as gRPC resolves it."""
        return self._endpoint.target

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> RequestOutput:
        """Continue a prompt and return the whole outputs.

        Args:
            prompt: A text or token ids.
            options: See `GenerateOptions`. Without max_tokens: 16.
        """
        async with self.generate_stream(prompt, **options) as stream:
            return await stream.collect(prompt)

    def generate_stream(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerationStream:
        """Continue a prompt; the stream gives what is new as it comes.

        Args:
            prompt: A text or token ids.
            options: See `GenerateOptions`. Without max_tokens: 16.
        """
        request, timeout = requests.generate_request(prompt, options)
        return self._stream("Generate", request, timeout)

    async def chat(
        self, conversation: Conversation, **options: Unpack[ChatOptions]
    ) -> RequestOutput:
        """Answer a conversation and return the whole outputs.

        Args:
            conversation: Messages, or the text of one message.
            options: See `ChatOptions`. Without max_tokens: the rest of the context.
        """
        async with self.chat_stream(conversation, **options) as stream:
            return await stream.collect()

    def chat_stream(
        self, conversation: Conversation, **options: Unpack[ChatOptions]
    ) -> AsyncGenerationStream:
        """Answer a conversation; the stream gives what is new as it comes.

        Args:
            conversation: Messages, or the text of one message.
            options: See `ChatOptions`. Without max_tokens: the rest of the context.
        """
        request, timeout = requests.chat_request(conversation, options)
        return self._stream("Chat", request, timeout)

    async def count_tokens(
        self, what: str | Conversation, **options: Unpack[TokenizeOptions]
    ) -> int:
        """Return the number of tokens of a text (a string) or a conversation (messages)."""
        request, timeout = requests.count_tokens_request(what, options)
        response = await self._call("CountTokens", request, timeout)
        return cast(int, response.num_tokens)

    async def tokenize(
        self, what: str | Conversation, **options: Unpack[TokenizeOptions]
    ) -> list[int]:
        """Return the token ids of a text (a string) or a conversation (messages)."""
        request, timeout = requests.tokenize_request(what, options)
        return list((await self._call("Tokenize", request, timeout)).token_ids)

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        skip_special_tokens: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 (the deadline travels with the call)
    ) -> str:
        """Return the text of token ids."""
        request = requests.detokenize_request(token_ids, model, skip_special_tokens)
        response = await self._call("Detokenize", request, timeout)
        return cast(str, response.text)

    async def list_models(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (the deadline travels with the call)
    ) -> tuple[Model, ...]:
        """Return the served models."""
        request = inference_pb2.ListModelsRequest()
        return responses.read_models(await self._call("ListModels", request, timeout))

    async def close(self) -> None:
        """Close the connections; calls that still run are cancelled. Idempotent."""
        self._is_closed = True
        self._pauses.close()
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _stub(self) -> inference_pb2_grpc.InferenceServiceAsyncStub:
        """Return the stub; the channel is opened here, where there is an event loop for it."""
        if self._is_closed:
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._methods is None:
            self._loop, self._channel = loop, self._open()
            self._methods = inference_pb2_grpc.InferenceServiceStub(self._channel)
        elif self._loop is not loop:
            raise RuntimeError("this client belongs to another event loop; open one for each")
        return self._methods

    def _open(self) -> grpc.aio.Channel:
        endpoint = self._endpoint
        if (credentials := endpoint.credentials) is not None:
            return grpc.aio.secure_channel(endpoint.target, credentials, options=endpoint.options)
        return grpc.aio.insecure_channel(endpoint.target, options=endpoint.options)

    def _prepare(self, method: str, request: Any) -> Start:
        """Return what starts an attempt of a call."""
        return partial(getattr(self._stub(), method), request, metadata=self._endpoint.metadata)

    def _attempts(self, method: str, timeout: float | None) -> Attempts:
        seconds = timeout if timeout is not None else self._timeout
        return Attempts(self._endpoint.retry_policy(method), seconds)

    def _stream(self, method: str, request: Any, timeout: float | None) -> AsyncGenerationStream:
        start, attempts = self._prepare(method, request), self._attempts(method, timeout)
        call = AsyncRetryingStream(start, attempts, self._pauses)
        return AsyncGenerationStream(call, self._endpoint.target)

    async def _call(self, method: str, request: Any, seconds: float | None) -> Any:
        start, attempts = self._prepare(method, request), self._attempts(method, seconds)
        try:
            return await call_unary(start, attempts, self._pauses)
        except grpc.aio.AioRpcError as exc:
            raise readable(exc, self._endpoint.target) from exc
