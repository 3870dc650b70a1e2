"""Doing something for a client only as long as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from gateway.http.errors import ClientGoneError
from pagewire.kit.tasks import cancel_and_wait


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it when the client disconnects. The body must have been read.

    Raises:
        ClientGoneError: The client left first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_wait_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone = not working.done()
        await cancel_and_wait(watching, *([working] if gone else []))
    if gone:
        raise ClientGoneError
    try:
        await working
    finally:
        del working  # it keeps its error, whose traceback leads back here


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
