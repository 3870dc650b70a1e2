"""The engines' load in a header of an answer, for load balancers that ask for it (ORCA).

A request with `endpoint-load-metrics-format: TEXT` or `JSON` gets `endpoint-load-metrics`. The
names are vLLM's; behind one gateway there may be several engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from starlette.types import Scope

from gateway.engine_pool import EnginePool

ASK_HEADER = b"endpoint-load-metrics-format"
TELL_HEADER = b"endpoint-load-metrics"
_ROUTES = frozenset({"/v1/completions", "/v1/chat/completions"})

NamedLoad = Callable[[], Mapping[str, float]]


def named_load(pool: EnginePool) -> dict[str, float]:
    """Return what is waiting at all engines and the mean use of their KV caches.

    Empty while none tells.
    """
    loads = [replica.load.message for replica in pool.replicas]
    told = [load for load in loads if load is not None and load.HasField("figures")]
    if not told:
        return {}
    return {
        "kv_cache_usage_perc": sum(load.kv_cache_usage for load in told) / len(told),
        "num_requests_waiting": sum(load.num_requests_waiting for load in told),
    }


def load_headers(scope: Scope, load: NamedLoad, status: int) -> list[tuple[bytes, bytes]]:
    """Return the header, if the request asks for it and can have it; else nothing.

    Args:
        scope: Of the request.
        load: Figures by name.
        status: Of the answer. Errors tell nothing: whoever gets one may have no key.
    """
    if scope["path"] not in _ROUTES or scope["method"] != "POST" or status >= 400:
        return []
    asked = next((value for name, value in scope["headers"] if name == ASK_HEADER), b"").upper()
    if asked not in (b"TEXT", b"JSON") or not (figures := load()):
        return []
    if asked == b"JSON":
        return [(TELL_HEADER, f"JSON {json.dumps({'named_metrics': figures})}".encode())]
    text = ", ".join(f"named_metrics.{name}={value}" for name, value in figures.items())
    return [(TELL_HEADER, f"TEXT {text}".encode())]
