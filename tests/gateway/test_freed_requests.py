"""A request that has ended is freed at once: no cycle keeps its prompt for the garbage collector.

The collector comes seldom in a process that serves (`pagewire.kit.garbage`).
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.generation import Output
from gateway.live_generation import Generation
from gateway.live_request import LiveRequest
from gateway.output_collector import OutputCollector
from pagewire.kit.errors import QueueFullError
from pagewire.v1 import scheduler_pb2
from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import Gateway

PATHS = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}
REFUSAL = scheduler_pb2.RequestError(code=8, reason="QUEUE_FULL", message="the queue is full")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """References to all generations and their outputs."""
    references: list[weakref.ref[Any]] = []

    def watch(cls: type[Any]) -> None:
        prepare = cls.__init__

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            prepare(self, *args, **kwargs)
            references.append(weakref.ref(self))

        monkeypatch.setattr(cls, "__init__", init)

    watch(Generation)
    watch(LiveRequest)
    return references


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_request_leaves_nothing_behind(
    gateway: Gateway, made: list[weakref.ref[Any]], path: str, stream: bool, is_refused: bool
) -> None:
    if is_refused:
        gateway.scheduler.refusal = REFUSAL
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0, "stream": stream, **PATHS[path]}
    for _ in range(4):
        answer = await gateway.http.post(path, json=body)
        assert answer.status_code == (429 if is_refused else 200)
    assert len(made) == 8
    async with asyncio.timeout(20):
        # Whoever read frames has the last one in hand until the next comes.
        while sum(reference() is not None for reference in made) > 1:
            await gateway.http.get("/health")


@pytest.mark.usefixtures("no_collector")
async def test_a_collector_that_failed_is_freed_once_it_is_closed() -> None:
    async def read(collector: OutputCollector) -> None:
        with pytest.raises(QueueFullError):
            await collector.take()
        collector.close()
        collector.put(Output(0, "late"))
        assert collector.num_bytes == 0

    collector = OutputCollector(10)
    collector.fail(QueueFullError("too slow"))
    reference = weakref.ref(collector)
    await read(collector)
    del collector
    assert reference() is None
