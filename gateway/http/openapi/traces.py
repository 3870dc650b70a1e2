"""Schemas of the traces of requests."""

from __future__ import annotations

from gateway.http.openapi.schemas import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    TEXT,
    Schema,
    array,
    closed,
    constant,
    integer,
    nullable,
    one_of,
    ref,
    words,
)
from gateway.trace.output_trace import ADMISSION, PREEMPTED, QUEUE, RECOVERY, WAIT
from gateway.trace.parts import BOX_OF

_PART = words(*BOX_OF)
_SECONDS_BY_PART: Schema = {
    "type": "object",
    "propertyNames": _PART,
    "additionalProperties": NUMBER,
}
_SPAN = {"start_s": NUMBER, "duration_s": NUMBER}
_SUMMARY: dict[str, Schema] = {
    "id": TEXT,
    "object": constant("request.trace"),
    "created": NUMBER,
    "route": TEXT,
    "status": one_of(INTEGER, TEXT),
    "model": TEXT,
    "generation_id": TEXT,
    "num_outputs": INTEGER,
    "prompt_tokens": INTEGER,
    "cached_tokens": INTEGER,
    "output_tokens": INTEGER,
    "finish_reasons": {"type": "object", "additionalProperties": INTEGER},
    "error": nullable(TEXT),
    "replicas": array(TEXT),
    "preemptions": INTEGER,
    "recoveries": INTEGER,
    "duration_s": NUMBER,
    "time_to_first_token_s": nullable(NUMBER),
    "parts": _SECONDS_BY_PART,
}

SCHEMAS: dict[str, Schema] = {
    "RequestTraces": closed(
        {
            "object": constant("list"),
            "recent": array(ref("RequestTraceSummary")),
            "slowest": array(ref("RequestTraceSummary")),
        }
    ),
    "RequestTraceSummary": closed(_SUMMARY),
    "RequestTrace": closed(
        {
            **_SUMMARY,
            "boxes": {
                "type": "object",
                "propertyNames": _PART,
                "additionalProperties": words(*dict.fromkeys(BOX_OF.values())),
            },
            "spans": array(closed({"part": _PART, **_SPAN})),
            "outputs": array(ref("RequestTraceOutput")),
        }
    ),
    "RequestTraceOutput": closed(
        {
            "index": INTEGER,
            "is_last": BOOLEAN,
            "replicas": array(TEXT),
            "preemptions": INTEGER,
            "recoveries": INTEGER,
            **_SPAN,
            "segments": array(ref("RequestTraceSegment")),
        }
    ),
    "RequestTraceSegment": closed(
        {
            "kind": words("prefill", "decode", ADMISSION, QUEUE, WAIT, PREEMPTED, RECOVERY),
            **_SPAN,
            "steps": INTEGER,
            "tokens": INTEGER,
            "parts": _SECONDS_BY_PART,
        }
    ),
}

LIMIT_PARAMETER = {
    "name": "limit",
    "in": "query",
    "required": False,
    "schema": integer(1, 1000),
}
ID_PARAMETER = {"name": "request_id", "in": "path", "required": True, "schema": TEXT}
