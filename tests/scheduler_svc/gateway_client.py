"""The gateway's side of an EngineStream, as small as a test needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pagewire.v1 import common_pb2, scheduler_pb2


class GatewayClient:
    """One stream; `read` takes frames in, the rest looks at what has come."""

    def __init__(self, stub: Any, gateway_id: str = "g", epoch: int = 1, generation: int = 1):
        self._stub = stub
        self._open = scheduler_pb2.EngineStreamOpen(
            gateway_id=gateway_id, gateway_epoch=epoch, generation=generation
        )
        self.call: Any = None
        self.frames: list[scheduler_pb2.EngineStreamResponse] = []
        self.admitted: list[int] = []
        self.refusals: dict[int, scheduler_pb2.RequestError] = {}
        self.errors: dict[int, scheduler_pb2.RequestError] = {}
        self.token_ids: dict[int, list[int]] = {}
        self.finished: dict[int, int] = {}
        self.num_cached_tokens: dict[int, int] = {}

    async def open(self) -> scheduler_pb2.EngineStreamAccepted:
        self.call = self._stub.EngineStream()
        await self.write(open=self._open)
        await self.read()
        return self.frames[0].accepted

    async def write(self, **parts: Any) -> None:
        await self.call.write(scheduler_pb2.EngineStreamRequest(**parts))

    async def add(self, handle: int, prompt: Sequence[int], **overrides: Any) -> None:
        params = {"max_tokens": 5, "ignore_eos": True, "temperature": 0.0}
        own = {"request_id", "output_token_ids", "resumed", "deadline_ns", "priority"}
        params |= {k: v for k, v in overrides.items() if k not in own}
        rest = {k: v for k, v in overrides.items() if k in own}
        await self.write(
            adds=[
                scheduler_pb2.EngineAdd(
                    **({"request_id": f"{self._open.gateway_id}-{handle}"} | rest),
                    handle=handle,
                    prompt_token_ids=prompt,
                    sampling_params=common_pb2.SamplingParams(**params),
                )
            ]
        )

    async def abort(self, handle: int, reason: Any = common_pb2.ABORT_REASON_CLIENT_GONE) -> None:
        await self.write(abort_handles=[handle], abort_reasons=[reason])

    async def read(self) -> scheduler_pb2.EngineStreamResponse:
        async with asyncio.timeout(10):
            frame = await self.call.read()
        if not isinstance(frame, scheduler_pb2.EngineStreamResponse):
            raise EOFError("the scheduler ended the stream")
        self.frames.append(frame)
        self.admitted += frame.admitted_handles
        self.refusals |= {error.handle: error for error in frame.refusals}
        self.errors |= {error.handle: error for error in frame.errors}
        self._take(frame.outputs)
        return frame

    async def read_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.read()

    async def read_finished(self, *handles: int) -> None:
        await self.read_until(lambda: set(handles) <= set(self.finished))

    def _take(self, outputs: scheduler_pb2.EngineOutputs) -> None:
        start = 0
        for handle, count in zip(outputs.handles, outputs.token_counts, strict=True):
            token_ids = outputs.token_ids[start : start + count]
            self.token_ids.setdefault(handle, []).extend(token_ids)
            start += count
        if start != len(outputs.token_ids):
            raise ValueError("token counts and token ids do not fit")
        self.finished |= dict(zip(outputs.finished_handles, outputs.finish_reasons, strict=True))
        self.num_cached_tokens |= dict(
            zip(outputs.scheduled_handles, outputs.num_cached_tokens, strict=True)
        )
