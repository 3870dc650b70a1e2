"""What the long-lived streams have in common."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from gateway.streams import StreamLostError, check_columns, run_until_one_ends


async def _fail(started: asyncio.Event) -> None:
    started.set()
    raise StreamLostError("the peer ended the stream")


async def test_the_first_failure_is_raised_and_the_other_parts_end() -> None:
    ended = asyncio.Event()

    async def go_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(StreamLostError):
        await run_until_one_ends(_fail(asyncio.Event()), go_on())
    assert ended.is_set()


async def test_a_cancel_beside_a_failure_leaves_no_exception_unseen() -> None:
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unseen.append(what))
    started = asyncio.Event()
    running = asyncio.create_task(run_until_one_ends(_fail(started)))
    await started.wait()  # the part has ended; its waiter has not run yet
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    del running
    await asyncio.sleep(0)  # the loop lets go of its callbacks
    gc.collect()
    assert unseen == []


async def test_a_failure_leads_back_to_nothing() -> None:
    """Else all that a lost stream held would wait for the collector."""

    async def go_on() -> None:
        await asyncio.Event().wait()

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(StreamLostError) as caught:
            await run_until_one_ends(_fail(asyncio.Event()), go_on())
        reference = weakref.ref(caught.value)
        del caught
        await asyncio.sleep(0)  # the loop lets go of its callbacks
        assert reference() is None
    finally:
        gc.enable()


def test_columns_of_different_lengths_are_a_loss() -> None:
    check_columns([1], [2])
    with pytest.raises(StreamLostError):
        check_columns([1], [])
