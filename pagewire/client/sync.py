"""`Client`: the public gRPC API for programs without an event loop.

It is built on gRPC's own threads and starts no event loop, so it works the same in a script, in a
thread, in a notebook, and in a program that has a loop of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack, cast

import grpc

from pagewire.client import requests, responses
from pagewire.client.errors import incomplete_answer, readable, request_cancelled
from pagewire.client.options import ChatOptions, GenerateOptions, TokenizeOptions
from pagewire.client.requests import Conversation, Prompt
from pagewire.client.responses import GenerationState, RequestBuilder
from pagewire.client.retry_policy import Attempts
from pagewire.client.retrying import Pauses, RetryingStream, Start, call_unary
from pagewire.client.transport import DEFAULT_ADDRESS, Endpoint, Tls
from pagewire.client.types import Delta, Model, RequestOutput, Usage
from pagewire.kit.errors import PagewireError
from pagewire.v1 import inference_pb2, inference_pb2_grpc


class GenerationStream:
    """What is new in a generation, as it comes: an iterator of `Delta`.

    Leaving it early cancels the request: use it in `with`, or call `cancel`, which any thread may
    do. One thread reads.
    """

    def __init__(self, call: RetryingStream, target: str) -> None:
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

    def collect(self, prompt: Prompt | None = None) -> RequestOutput:
        """Read to the end, and return the whole outputs.

        Raises:
            PagewireError: As the iteration does.
        """
        builder = RequestBuilder(prompt)
        for delta in self:
            builder.add(delta)
        return builder.build(self._state)

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        """Return the next delta.

        Raises:
            PagewireError: The request was refused or failed.
            RequestCancelledError: `cancel` was called.
        """
        while (response := self._read()) is not None:
            if (delta := self._state.read(response)) is not None:
                return delta
        if not self._state.is_complete:
            raise incomplete_answer(self._target)
        raise StopIteration

    def _read(self) -> Any:
        """Return the next event, None at the end."""
        try:
            return next(self._call, None)
        except grpc.RpcError as exc:
            raise self._failure(exc) from exc
        except BaseException:  # Ctrl-C while it waits
            self._call.cancel()
            raise

    def _failure(self, exc: grpc.RpcError) -> PagewireError:
        if self._call.is_cancelled:
            return request_cancelled()
        return readable(cast(grpc.Call, exc), self._target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        # A `for` that was left does not close its iterator.
        with contextlib.suppress(Exception):
            self._call.cancel()


class Client:
    """A client of one gateway or several. Any number of threads may use one.

    ```python
    with Client("127.0.0.1:50050") as client:
        answer = client.chat("What is the capital of France?", temperature=0)
        print(answer.text)
        for delta in client.chat_stream("And of Italy?"):
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
        self._endpoint = endpoint = Endpoint(address, api_key, tls, retry)
        self._timeout = timeout
        self._pauses = Pauses()
        self._is_closed = False
        if (credentials := endpoint.credentials) is not None:
            self._channel = grpc.secure_channel(
                endpoint.target, credentials, options=endpoint.options
            )
        else:
            self._channel = grpc.insecure_channel(endpoint.target, options=endpoint.options)
        self._methods = inference_pb2_grpc.InferenceServiceStub(self._channel)

    @property
    def target(self) -> str:
        """Where it connects, as gRPC resolves it."""
        return self._endpoint.target

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> RequestOutput:
        """Continue a prompt and return the whole outputs.

        Args:
            prompt: A text or token ids.
            options: See `GenerateOptions`. Without max_tokens: 16.
        """
        with self.generate_stream(prompt, **options) as stream:
            return stream.collect(prompt)

    def generate_stream(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> GenerationStream:
        """Continue a prompt; the stream gives what is new as it comes.

        Args:
            prompt: A text or token ids.
            options: See `GenerateOptions`. Without max_tokens: 16.
        """
        request, timeout = requests.generate_request(prompt, options)
        return self._stream("Generate", request, timeout)

    def chat(self, conversation: Conversation, **options: Unpack[ChatOptions]) -> RequestOutput:
        """Answer a conversation and return the whole outputs.

        Args:
            conversation: Messages, or the text of one message.
            options: See `ChatOptions`. Without max_tokens: the rest of the context.
        """
        with self.chat_stream(conversation, **options) as stream:
            return stream.collect()

    def chat_stream(
        self, conversation: Conversation, **options: Unpack[ChatOptions]
    ) -> GenerationStream:
        """Answer a conversation; the stream gives what is new as it comes.

        Args:
            conversation: Messages, or the text of one message.
            options: See `ChatOptions`. Without max_tokens: the rest of the context.
        """
        request, timeout = requests.chat_request(conversation, options)
        return self._stream("Chat", request, timeout)

    def count_tokens(self, what: str | Conversation, **options: Unpack[TokenizeOptions]) -> int:
        """Return the number of tokens of a text (a string) or a conversation (messages)."""
        request, timeout = requests.count_tokens_request(what, options)
        response = self._call("CountTokens", request, timeout)
        return cast(int, response.num_tokens)

    def tokenize(self, what: str | Conversation, **options: Unpack[TokenizeOptions]) -> list[int]:
        """Return the token ids of a text (a string) or a conversation (messages)."""
        request, timeout = requests.tokenize_request(what, options)
        return list(self._call("Tokenize", request, timeout).token_ids)

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        skip_special_tokens: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Return the text of token ids."""
        request = requests.detokenize_request(token_ids, model, skip_special_tokens)
        return cast(str, self._call("Detokenize", request, timeout).text)

    def list_models(self, *, timeout: float | None = None) -> tuple[Model, ...]:
        """Return the served models."""
        request = inference_pb2.ListModelsRequest()
        return responses.read_models(self._call("ListModels", request, timeout))

    def generate_batch(
        self, request: inference_pb2.GenerateBatchRequest, timeout: float | None = None
    ) -> Any:
        """Start a batch; returns gRPC's call, one attempt. What `LLM` is built on."""
        seconds = timeout if timeout is not None else self._timeout
        return self._prepare("GenerateBatch", request)(timeout=seconds)

    def close(self) -> None:
        """Close the connections; calls that still run are cancelled. Idempotent."""
        self._is_closed = True
        self._pauses.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(self, method: str, request: Any) -> Start:
        """Return what starts an attempt of a call."""
        if self._is_closed:
            raise RuntimeError("the client is closed")
        return partial(getattr(self._methods, method), request, metadata=self._endpoint.metadata)

    def _attempts(self, method: str, timeout: float | None) -> Attempts:
        seconds = timeout if timeout is not None else self._timeout
        return Attempts(self._endpoint.retry_policy(method), seconds)

    def _stream(self, method: str, request: Any, timeout: float | None) -> GenerationStream:
        start, attempts = self._prepare(method, request), self._attempts(method, timeout)
        return GenerationStream(
            RetryingStream(start, attempts, self._pauses), self._endpoint.target
        )

    def _call(self, method: str, request: Any, timeout: float | None) -> Any:
        start, attempts = self._prepare(method, request), self._attempts(method, timeout)
        try:
            return call_unary(start, attempts, self._pauses)
        except grpc.RpcError as exc:
            raise readable(cast(grpc.Call, exc), self._endpoint.target) from exc
