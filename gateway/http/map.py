"""`GET /v1/map`: the live map, for `pagewire map` and the page."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.http.json_response import json_response
from gateway.map.live_map import LiveMap
from gateway.map.report import report

PATH = "/v1/map"


def map_route(live_map: LiveMap) -> Route:
    """Return the route."""

    async def show(request: Request) -> Response:
        answer = json_response(report(live_map.view(), time.time()))
        answer.headers["cache-control"] = "no-store"
        return answer

    return Route(PATH, show)
