"""`GET /v1/requests` and `/v1/requests/{id}/trace`: where the time of kept requests went.

Clients see their own requests, and those named by `--trace-readers` everybody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.fields import invalid
from gateway.http.json_response import json_response
from gateway.trace.recorder import TraceRecorder
from gateway.trace.report import summary, whole
from gateway.trace.request_trace import RequestTrace
from pagewire.kit.errors import NotFoundError

_MAX_LISTED = 1000
_DEFAULT_LISTED = 20


class TraceRoutes:
    """The endpoints. One object serves all requests, on one event loop."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder

    async def listed(self, request: Request) -> Response:
        """The last ones and the slowest, without their timelines."""
        self._check_on()
        limit = _limit(request.query_params.get("limit"))
        store = self._recorder.store
        lists = {
            name: list(islice(filter(self._may_read, kept), limit))
            for name, kept in (("recent", store.recent()), ("slowest", store.slowest()))
        }
        # Closed traces stay as they are, and a thousand of them take their time.
        return await asyncio.to_thread(_write_list, lists)

    async def trace(self, request: Request) -> Response:
        """One request with its timeline."""
        self._check_on()
        request_id = request.path_params["request_id"]
        trace = self._recorder.store.find(request_id, self._may_read)
        if trace is None:
            raise NotFoundError(
                f"no trace of request `{request_id[:128]}` is kept: it has not ended yet, or too"
                " many came after it (--trace-requests), or its x-request-id was another",
                reason="TRACE_NOT_FOUND",
                field="request_id",
            )
        return json_response(whole(trace))

    def _may_read(self, trace: RequestTrace) -> bool:
        return self._recorder.readers.may_read(trace.client)

    def _check_on(self) -> None:
        if not self._recorder.store.is_on:
            raise NotFoundError(
                "this gateway keeps no traces; start it with --trace-requests",
                reason="TRACES_OFF",
            )


def _write_list(lists: Mapping[str, Sequence[RequestTrace]]) -> Response:
    summaries = {name: list(map(summary, traces)) for name, traces in lists.items()}
    return json_response({"object": "list"} | summaries)


def _limit(text: str | None) -> int:
    if text is None:
        return _DEFAULT_LISTED
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MAX_LISTED):
        raise invalid("limit", f"must be an integer between 1 and {_MAX_LISTED}")
    return int(text)
