"""A scheduler without workers: real gRPC, and tokens that follow from what was added.

It spells `fake_tokenizer` bytes: an output is the prompt backwards, over and over, and a request
whose prompt holds EOS ends with EOS after one round. So a resumed request goes on where it was.
With a `script`, every output is that text and then EOS.
Of logprobs, the token that is there has -0.5, the next id -1.5, and so on.
Clearing `go_on` holds tokens back, `frames_left` bounds them, `lose_streams` ends all streams,
`refusal` refuses adds; `opens`, `adds` and `aborts` keep what was seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import grpc

from pagewire.kit.errors import UnimplementedError
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from tests.fakes.fake_tokenizer import BOS, EOS, FINGERPRINT, VOCAB_SIZE

MODEL = "fake-model"
MAX_MODEL_LEN = 512
NUM_CACHED_TOKENS = 3


def expected_output(prompt_token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """The first output tokens of a prompt."""
    body = [i for i in reversed(prompt_token_ids) if i < BOS] or [ord("?")]
    if EOS in prompt_token_ids:
        return [*body, EOS][:num_tokens]
    return [body[i % len(body)] for i in range(num_tokens)]


class _Stream:
    """One gateway's stream: what runs by handle (the add, the output so far), one writer a time."""

    def __init__(self, owner: FakeScheduler, context: Any) -> None:
        self.context, self._lock, self.added = context, asyncio.Lock(), asyncio.Event()
        self._owner = owner
        self.running: dict[int, tuple[Any, list[int]]] = {}

    async def write(self, frame: Any) -> None:
        frame.recovering = self._owner.is_recovering
        async with self._lock:
            await self.context.write(frame)


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """The service and its server; the figures of `info` may be changed before it is entered."""

    def __init__(self, listen: str = "127.0.0.1:0", models: Sequence[str] = (MODEL,)) -> None:
        self.info = scheduler_pb2.GetEngineInfoResponse(
            scheduler_id="fake",
            served_model_names=models,
            max_model_len=MAX_MODEL_LEN,
            engine_fingerprint="engine",
            max_logprobs=20,
            model_info=common_pb2.ModelInfo(
                vocab_size=VOCAB_SIZE, eos_token_ids=[EOS], tokenizer_fingerprint=FINGERPRINT
            ),
        )
        self.opens, self.adds, self.aborts = list[Any](), list[Any](), list[tuple[str, int]]()
        self.refusal: Any = None
        self.script = ""
        self.ignores_adds = self.is_recovering = False
        self._streams: set[_Stream] = set()
        self.num_open = self.num_closed_cleanly = self.num_finished = 0
        self.frames_left: int | None = None
        self.go_on, self._lost, self._changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self._server = ServiceServer(
            ServerConfig(listen=listen),
            "pagewire.v1.SchedulerService",
            [lambda s: scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, s)],
        )

    async def __aenter__(self) -> Self:
        await self._server.start()
        await self._server.set_serving(True)
        self.target = self._server.address
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lose_streams()
        await self._server.stop(0)

    def lose_streams(self) -> None:
        """End every open stream."""
        self._lost.set()
        self._lost = asyncio.Event()

    async def tell(self, suspicions: int = 0) -> None:
        """Tell gateways whether it recovers, and so many suspicions of all that runs."""
        for stream in self._streams:
            handles = list(stream.running) if suspicions else []
            counts = [suspicions] * len(handles)
            frame = scheduler_pb2.EngineStreamResponse(
                suspected_handles=handles, suspicion_counts=counts
            )
            await stream.write(frame)

    async def until(self, condition: Any) -> None:
        """Wait until something that was seen makes `condition()` true."""
        async with asyncio.timeout(20):
            while not condition():
                await self._changed.wait()

    async def GetEngineInfo(self, request: Any, context: Any) -> Any:
        return self.info

    async def WatchLoad(self, request: Any, context: Any) -> AsyncIterator[Any]:
        raise UnimplementedError("this fake does not tell its load")
        yield  # makes it a stream

    async def SubscribeKvEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:
        raise UnimplementedError("this fake has no KV events")
        yield

    async def EngineStream(self, request_iterator: Any, context: Any) -> None:
        stream = _Stream(self, context)
        parts = (self._read(stream), self._pump(stream), self._lost.wait())
        tasks = [asyncio.ensure_future(part) for part in parts]
        self.num_open += 1
        self._streams.add(stream)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.num_open -= 1
            self._streams.discard(stream)
            self._notify()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read(self, stream: _Stream) -> None:
        while (frame := await stream.context.read()) is not grpc.aio.EOF:
            if frame.close:
                self.num_closed_cleanly += 1
                return
            answer = scheduler_pb2.EngineStreamResponse()
            if frame.HasField("open"):
                self.opens.append(frame.open)
                answer.accepted.engine_fingerprint = self.info.engine_fingerprint
            if frame.HasField("heartbeat"):
                answer.heartbeat.CopyFrom(frame.heartbeat)
            for add in frame.adds:
                self._take(add, answer)
            for handle, reason in zip(frame.abort_handles, frame.abort_reasons, strict=True):
                if (row := stream.running.pop(handle, None)) is not None:
                    self.aborts.append((row[0].request_id, reason))
            await stream.write(answer)
            admitted = set(answer.admitted_handles)
            adds = [add for add in frame.adds if add.handle in admitted]
            stream.running.update((add.handle, (add, list(add.output_token_ids))) for add in adds)
            stream.added.set()
            self._notify()

    def _take(self, add: Any, answer: Any) -> None:
        self.adds.append(add)
        if self.refusal is not None:
            answer.refusals.add(handle=add.handle).MergeFrom(self.refusal)
        elif not self.ignores_adds:
            answer.admitted_handles.append(add.handle)
            answer.outputs.scheduled_handles.append(add.handle)
            answer.outputs.num_cached_tokens.append(NUM_CACHED_TOKENS)
            answer.outputs.queue_ns.append(1)

    async def _pump(self, stream: _Stream) -> None:
        """One token for each request in each frame."""
        while True:
            await self.go_on.wait()
            stream.added.clear()
            if not stream.running:
                await stream.added.wait()
                continue
            outputs = _step(stream.running, [*self.script.encode(), EOS] if self.script else [])
            await stream.write(scheduler_pb2.EngineStreamResponse(outputs=outputs))
            self.num_finished += len(outputs.finished_handles)
            self.frames_left = None if self.frames_left is None else self.frames_left - 1
            is_last = self.frames_left == 0  # now: who is told may set it for the next stream
            self._notify()
            if is_last:
                await asyncio.Event().wait()


def _step(running: dict[int, tuple[Any, list[int]]], script: list[int]) -> Any:
    outputs = scheduler_pb2.EngineOutputs()
    for handle, (add, done) in list(running.items()):
        wanted = script or expected_output(add.prompt_token_ids, len(done) + 1)
        token_id = wanted[min(len(done), len(wanted) - 1)]
        _add_logprobs(outputs, handle, add, token_id, is_first=not done)
        done.append(token_id)
        outputs.handles.append(handle)
        outputs.token_counts.append(1)
        outputs.token_ids.append(token_id)
        params = add.sampling_params
        stops = token_id in params.stop_token_ids or (token_id == EOS and not params.ignore_eos)
        if stops or len(done) == params.max_tokens:
            reason = common_pb2.FINISH_REASON_STOP if stops else common_pb2.FINISH_REASON_LENGTH
            outputs.finished_handles.append(handle)
            outputs.finish_reasons.append(reason)
            outputs.stop_token_ids_plus_one.append(token_id + 1 if stops else 0)
            del running[handle]
    return outputs


def _add_logprobs(outputs: Any, handle: int, add: Any, token_id: int, is_first: bool) -> None:
    params = add.sampling_params
    if params.HasField("logprobs") or params.logprob_token_ids:
        outputs.logprob_handles.append(handle)
        _fill_logprobs(outputs.logprobs, [token_id], params.logprobs, params.logprob_token_ids)
    if params.HasField("prompt_logprobs") and is_first:
        outputs.prompt_logprob_handles.append(handle)
        outputs.prompt_logprob_counts.append(len(add.prompt_token_ids) - 1)
        _fill_logprobs(outputs.prompt_logprobs, add.prompt_token_ids[1:], params.prompt_logprobs)


def _fill_logprobs(
    columns: Any, token_ids: Sequence[int], num_top: int, named: Sequence[int] = ()
) -> None:
    for token_id in token_ids:
        top = named or [(token_id + i) % VOCAB_SIZE for i in range(num_top)]
        columns.logprobs.append(-0.5)
        columns.ranks.append(1)
        columns.top_counts.append(len(top))
        columns.top_token_ids.extend(top)
        columns.top_logprobs.extend(-0.5 - i for i in range(len(top)))
