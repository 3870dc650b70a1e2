"""Schemas of the live map."""

from __future__ import annotations

from gateway.http.openapi.schemas import (
    NUMBER,
    TEXT,
    Schema,
    array,
    closed,
    constant,
    nullable,
    ref,
    words,
)
from gateway.map.boxes import Kind, State
from gateway.map.finding import VERDICTS

_KNOWN_OR_NULL = {"type": "object", "additionalProperties": nullable(NUMBER)}
_PROCESS_FIGURES = (
    *("cpu_cores", "waiting_threads", "loop_lag_max_ms", "loop_lag_mean_ms", "rss_bytes"),
    *("num_cpus", "uptime_s", "rpcs_per_s"),
)

SCHEMAS: dict[str, Schema] = {
    "Map": closed(
        {
            "object": constant("map"),
            "created": NUMBER,
            "window_s": NUMBER,
            "diagnosis": ref("MapDiagnosis"),
            "boxes": array(ref("MapBox")),
            "edges": array(ref("MapEdge")),
        }
    ),
    "MapDiagnosis": closed(
        {
            "verdict": words(*VERDICTS),
            "box": nullable(TEXT),
            "summary": TEXT,
            "why": {"type": "object", "additionalProperties": NUMBER},
            "try": array(TEXT),
        }
    ),
    "MapBox": closed(
        {
            "id": TEXT,
            "kind": words(*Kind),
            "replica": nullable(TEXT),
            "address": nullable(TEXT),
            "state": words(*State),
            "version": nullable(TEXT),
            "figures": _KNOWN_OR_NULL,
            "process": nullable(closed(dict.fromkeys(_PROCESS_FIGURES, nullable(NUMBER)))),
            "history": array(NUMBER),
        }
    ),
    "MapEdge": closed(
        {
            "from": TEXT,
            "to": TEXT,
            "messages_per_s": nullable(NUMBER),
            "round_trip_ms": nullable(NUMBER),
        }
    ),
}
