"""A scripted gateway, and one face for both clients, so that each test holds for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pagewire import AsyncClient, Client
from pagewire.client.types import Delta
from pagewire.v1 import common_pb2, inference_pb2
from tests.fakes.scripted_inference import ScriptedInference, running_inference


class SyncFace:
    def __init__(self, *args: Any, **options: Any) -> None:
        self.client = Client(*args, **options)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self.client, method)(*args, **options)

    def stream(self, method: str, *args: Any, **options: Any) -> Iterator[Delta]:
        with getattr(self.client, method)(*args, **options) as stream:
            yield from stream

    def shut(self) -> None:
        self.client.close()

    def close(self) -> None:
        self.shut()


class AsyncFace:
    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self.client = AsyncClient(*args, **options)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        async def call() -> Any:
            return await getattr(self.client, method)(*args, **options)

        return self._runner.run(call())

    def stream(self, method: str, *args: Any, **options: Any) -> Iterator[Delta]:
        async def start() -> Any:
            return await getattr(self.client, method)(*args, **options).__aenter__()

        async def step(stream: Any) -> Delta | None:
            async for delta in stream:
                return delta  # type: ignore[no-any-return]
            return None

        async def leave(stream: Any) -> None:
            await stream.__aexit__(None, None, None)

        stream = self._runner.run(start())
        try:
            while (delta := self._runner.run(step(stream))) is not None:
                yield delta
        finally:
            self._runner.run(leave(stream))

    def shut(self) -> None:
        self._runner.run(self.client.close())

    def close(self) -> None:
        self.shut()
        self._runner.close()


Connect = Callable[..., Any]


@pytest.fixture
def gateway() -> Iterator[ScriptedInference]:
    with running_inference() as servicer:
        yield servicer


@pytest.fixture(params=[SyncFace, AsyncFace], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Open clients of one of the two kinds; they are closed at the end."""
    faces: list[Any] = []

    def open_face(*args: Any, **options: Any) -> Any:
        faces.append(request.param(*args, **options))
        return faces[-1]

    yield open_face
    for face in faces:
        face.close()


def events(
    *texts: str, kind: Any = inference_pb2.GenerateResponse, complete: bool = True
) -> Iterator[Any]:
    """What a gateway sends for one output that has these deltas."""
    yield kind(started=inference_pb2.GenerationStarted(request_id="r", model="m"))
    for text in texts:
        is_chat = kind is inference_pb2.ChatResponse
        yield kind(
            delta=inference_pb2.ChatDelta(content=text)
            if is_chat
            else inference_pb2.GenerationDelta(text=text)
        )
    reason = common_pb2.FINISH_REASON_LENGTH
    yield kind(finished=inference_pb2.GenerationFinished(finish_reason=reason))
    if complete:
        yield kind(usage=common_pb2.Usage(prompt_tokens=1, completion_tokens=len(texts)))
