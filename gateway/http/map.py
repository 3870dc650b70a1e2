"""`GET /v1/map`: the live map, for `pagewire map` and the page."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.http.json_response import json_response
from gateway.map.live_map import LiveMap, View
from gateway.map.report import report

PATH = "/v1/map"


def _answer(view: View, now_s: float) -> Response:
    answer = json_response(report(view, now_s))
    answer.headers["cache-control"] = "no-store"
    return answer


def map_route(live_map: LiveMap) -> Route:
    """Return the route."""

    async def show(request: Request) -> Response:
        # Many boxes take their time, which no stream of tokens shall wait for.
        return await asyncio.to_thread(_answer, live_map.view(), time.time())

    return Route(PATH, show)
