"""The tokenizer service: text and conversations to token ids, and the stream that goes back.

One tokenizer of `--tokenizers` is in use at a time. `run` keeps it connected: when it is lost, the
next one is tried, round and round, and the detokenizer's requests are opened there. Unary calls
have no state, so they are tried again on whatever is connected by then, within their deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc

from gateway.detokenizer import Detokenizer
from gateway.detokenizer_stream import DetokenizerStream
from gateway.generation import ChatMessage, ChatPrompt
from gateway.map.call_counter import CallCounter
from gateway.streams import StreamLostError, run_until_one_ends
from gateway.tokenizer_targets import TokenizerTargets
from gateway.trace.request_trace import current as current_trace
from pagewire.kit.errors import (
    InternalError,
    NotBegunError,
    PagewireError,
    ServiceUnavailableError,
    from_rpc_error,
)
from pagewire.kit.logs import get_logger
from pagewire.kit.tls import PeerTls
from pagewire.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc

log = get_logger("gateway.tokenizer_client")

R = TypeVar("R")

Stub: TypeAlias = "tokenizer_pb2_grpc.TokenizerServiceAsyncStub"
UnaryCall: TypeAlias = "grpc.aio.UnaryUnaryCall[Any, R]"


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What the connected tokenizer is."""

    fingerprint: str
    has_chat_template: bool
    max_prompt_bytes: int
    """0: not said."""
    bos_token_id: int | None = None
    tool_call_format: str = ""
    """In which the model calls tools, as its template shows; empty: not known."""


class TokenizerClient:
    """Used from one event loop; `run` is its only task."""

    def __init__(
        self,
        targets: Sequence[str],
        detokenizer: Detokenizer,
        *,
        timeout_s: float,
        connect_timeout_s: float,
        on_change: Callable[[], None],
        tls: PeerTls | None = None,
    ) -> None:
        self.info: TokenizerInfo | None = None
        self._targets = targets
        self._detokenizer = detokenizer
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._on_change = on_change
        self._tls = tls
        self._connection: _Connection | None = None
        self._connected = asyncio.Event()
        self._in_turn: TokenizerTargets | None = None
        self.target = ""
        """Address of the tokenizer that is in use, or was last."""
        self.stream: DetokenizerStream | None = None
        self.calls = CallCounter()
        """Unary calls, the waits for a connection included."""

    @property
    def is_ready(self) -> bool:
        return self._connection is not None

    @property
    def addresses(self) -> Sequence[str]:
        """Of all tokenizers that are known."""
        return () if self._in_turn is None else self._in_turn.addresses

    async def encode(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[Sequence[int]]:
        """Tokenize texts, one row each."""
        message = tokenizer_pb2.EncodeRequest(texts=texts, add_special_tokens=add_special_tokens)
        answer = await self._call(lambda stub, timeout: stub.Encode(message, timeout=timeout))
        current_trace().tokenizer_took(answer.service_ns)
        return [row.ids for row in answer.rows]

    async def encode_bad_words(self, words: Sequence[str]) -> list[Sequence[int]]:
        """Tokenize words as bad words: two rows each, as it is and with a space before it."""
        message = tokenizer_pb2.EncodeRequest(texts=words, bad_word_variants=True)
        answer = await self._call(lambda stub, timeout: stub.Encode(message, timeout=timeout))
        current_trace().tokenizer_took(answer.service_ns)
        return [row.ids for row in answer.rows]

    async def render_chat(self, prompt: ChatPrompt) -> Sequence[int]:
        """Turn a conversation into token ids through the model's chat template."""
        message = tokenizer_pb2.RenderChatRequest(
            messages=[_template_message(each) for each in prompt.messages],
            tools_json=prompt.tools_json,
            template_arguments_json=prompt.template_arguments_json,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            chat_template=prompt.chat_template,
            add_special_tokens=prompt.add_special_tokens,
        )
        answer = await self._call(lambda stub, timeout: stub.RenderChat(message, timeout=timeout))
        current_trace().tokenizer_took(answer.service_ns)
        return answer.token_ids

    async def decode(
        self, rows: Sequence[Sequence[int]], skip_special_tokens: bool
    ) -> Sequence[str]:
        """Turn whole token sequences into texts."""
        message = tokenizer_pb2.DecodeRequest(
            rows=[common_pb2.TokenIds(ids=row) for row in rows],
            skip_special_tokens=skip_special_tokens,
        )
        answer = await self._call(lambda stub, timeout: stub.Decode(message, timeout=timeout))
        current_trace().tokenizer_took(answer.service_ns)
        return answer.texts

    async def files(self, names: Collection[str], max_bytes: int) -> dict[str, bytes]:
        """Read some of the tokenizer's files; one that it does not have is left out.

        Raises:
            PagewireError: No tokenizer answers in time, or they have more than `max_bytes`.
        """
        deadline_s = asyncio.get_running_loop().time() + self._connect_timeout_s
        connection = await self._wait_connected(deadline_s)
        request, files = tokenizer_pb2.GetTokenizerFilesRequest(), dict[str, bytes]()
        try:
            parts = connection.stub.GetTokenizerFiles(request, timeout=self._timeout_s)
            async for part in parts:
                if part.name in names:
                    files[part.name] = files.get(part.name, b"") + part.chunk
                if sum(map(len, files.values())) > max_bytes:
                    parts.cancel()
                    raise InternalError(f"the tokenizer's files have more than {max_bytes} bytes")
        except grpc.aio.AioRpcError as exc:
            raise from_rpc_error(exc) from exc
        return files

    async def run(self) -> None:
        """Keep connected until cancelled; what fails in following the names is raised."""
        async with TokenizerTargets(self._targets, self._tls) as targets:
            self._in_turn = targets
            await run_until_one_ends(self._serve_forever(targets), targets.wait_failed())

    async def _serve_forever(self, targets: TokenizerTargets) -> None:
        while True:
            target, stub = await targets.next()
            try:
                await self._serve_once(target, stub)
            except grpc.aio.AioRpcError as exc:
                self._on_lost(target, f"{exc.code().name}: {exc.details()}")
            except StreamLostError as exc:
                self._on_lost(target, str(exc))
            except Exception as exc:
                # A bug that one stream meets must not end the process.
                log.error("tokenizer_stream_failed", target=target, exc_info=exc)
                self._on_lost(target, "internal error")
            # One that is still starting tells when it is done.
            await targets.wait_for_start(target, self._detokenizer.recovery.backoff.next_s())

    async def _serve_once(self, target: str, stub: Stub) -> None:
        info = await stub.GetTokenizerInfo(
            tokenizer_pb2.GetTokenizerInfoRequest(), timeout=self._connect_timeout_s
        )
        log.info("tokenizer_connected", target=target)
        self.info = TokenizerInfo(
            info.fingerprint,
            info.has_chat_template,
            info.max_prompt_bytes,
            info.bos_token_id if info.HasField("bos_token_id") else None,
            info.tool_call_format,
        )
        self._detokenizer.restart(info.fingerprint)
        connection = self._connection = _Connection(stub)
        self._connected.set()
        self._on_change()
        self.target = target
        self.stream = DetokenizerStream(stub, self._detokenizer)
        try:
            await self.stream.run()
        finally:
            self._connection = self.stream = None
            self._connected.clear()
            connection.lose()

    def _on_lost(self, target: str, reason: str) -> None:
        if self.info is not None:
            log.warning("tokenizer_lost", target=target, reason=reason)
        self.info = None
        self._detokenizer.on_lost()
        self._on_change()

    async def _call(self, call: Callable[[Stub, float], UnaryCall[R]]) -> R:
        with self.calls.counted():
            return await self._call_in_time(call)

    async def _call_in_time(self, call: Callable[[Stub, float], UnaryCall[R]]) -> R:
        """Make a unary call, again after a loss, as long as a reconnect may well take.

        A tokenizer that is stopped answers nothing and refuses nothing: its stream tells that it is
        lost, and the call goes on at the next one, within the time of the call.

        Raises:
            PagewireError: What the tokenizer answered, or that none can be reached in time.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        patience_s = loop.time() + self._connect_timeout_s
        while True:
            connection = await self._wait_connected(min(patience_s, deadline_s))
            left_s = max(deadline_s - loop.time(), 0.001)
            try:
                return await connection.run(call(connection.stub, left_s))
            except StreamLostError:
                patience_s = loop.time() + self._connect_timeout_s
            except grpc.aio.AioRpcError as exc:
                if not _is_lost(from_rpc_error(exc)) or loop.time() >= patience_s:
                    raise from_rpc_error(exc) from exc
                log.info("tokenizer_call_failed", details=exc.details())
                await asyncio.sleep(_RETRY_WAIT_S)  # the stream's loss is noticed meanwhile

    async def _wait_connected(self, deadline_s: float) -> _Connection:
        try:
            async with asyncio.timeout_at(deadline_s):
                while (connection := self._connection) is None:
                    await self._connected.wait()
        except TimeoutError:
            raise NotBegunError(
                "no tokenizer is connected; try again soon",
                reason="TOKENIZER_UNAVAILABLE",
                retry_after_s=_RETRY_AFTER_S,
            ) from None
        return connection


class _Connection:
    """A tokenizer while its stream lives, and the unary calls that it has to answer."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self._calls: set[UnaryCall[Any]] = set()

    async def run(self, call: UnaryCall[R]) -> R:
        """Await a call.

        Raises:
            StreamLostError: The tokenizer is lost.
            grpc.aio.AioRpcError: The call failed.
        """
        self._calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise StreamLostError("the tokenizer is lost") from None
        finally:
            self._calls.discard(call)

    def lose(self) -> None:
        """End the calls that wait for an answer."""
        for call in list(self._calls):
            call.cancel()


def _is_lost(error: PagewireError) -> bool:
    """Whether the tokenizer went away, or says that it does."""
    # A connection that is torn down is sometimes told as an internal error of the transport.
    return isinstance(error, ServiceUnavailableError) or error.reason == "PEER_FAILED"


_RETRY_WAIT_S = 0.1
_RETRY_AFTER_S = 1.0


def _template_message(message: ChatMessage) -> Any:
    built = tokenizer_pb2.TemplateMessage(
        role=message.role,
        name=message.name,
        tool_calls_json=message.tool_calls_json,
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
    )
    if message.content is not None:
        built.content = message.content
    return built
