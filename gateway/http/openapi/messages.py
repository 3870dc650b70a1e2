"""Schemas of the Messages API: bodies, and answers, which have no fields but these."""

from __future__ import annotations

from gateway.http.chat_tools import MAX_TOOLS
from gateway.http.messages.blocks import INVALID_JSON
from gateway.http.openapi.requests import FUNCTION_NAME, SAMPLING, STOP
from gateway.http.openapi.schemas import (
    BOOLEAN,
    INTEGER,
    NULL,
    OBJECT,
    TEXT,
    Schema,
    array,
    body,
    closed,
    constant,
    integer,
    nullable,
    one_of,
    ref,
    words,
)
from pagewire.sampling_params import MAX_STOP_STRINGS

_TEXTS = one_of(TEXT, array(ref("MessagesText")))
_PROMPT: dict[str, Schema] = {
    "model": TEXT,
    "system": _TEXTS,
    "tools": array(ref("MessagesTool"), maxItems=MAX_TOOLS),
    "tool_choice": ref("MessagesToolChoice"),
    "thinking": body(
        {"type": words("disabled", "adaptive", "enabled")},
        {"display": words("summarized", "omitted"), "budget_tokens": integer(1)},
    ),
    "output_config": body(
        {},
        {
            "effort": words("none", "minimal", "low", "medium", "high", "xhigh", "max"),
            "format": ref("MessagesFormat"),
        },
    ),
    "chat_template_kwargs": OBJECT,
}
_CONVERSATION = {"messages": array(ref("MessagesTurn"), minItems=1)}

MESSAGES = body(
    _CONVERSATION | {"max_tokens": integer(1)},
    SAMPLING
    | _PROMPT
    | {
        "stop_sequences": array(STOP, maxItems=MAX_STOP_STRINGS),
        "output_format": ref("MessagesFormat"),
        "metadata": OBJECT,
        "service_tier": TEXT,
    },
)
COUNT_TOKENS = body(_CONVERSATION, _PROMPT)

PARTS: dict[str, Schema] = {
    "MessagesText": body({"type": constant("text"), "text": TEXT}, {}),
    "MessagesTurn": body(
        {
            "role": words("user", "assistant", "system"),
            "content": one_of(
                TEXT,
                array(
                    one_of(
                        ref("MessagesText"),
                        body({"type": constant("thinking"), "thinking": TEXT}, {}),
                        body(
                            {
                                "type": constant("tool_use"),
                                "id": TEXT,
                                "name": TEXT,
                                "input": OBJECT,
                            },
                            {},
                        ),
                        body(
                            {"type": constant("tool_result"), "tool_use_id": TEXT},
                            {"content": _TEXTS, "is_error": BOOLEAN},
                        ),
                    ),
                    minItems=1,
                ),
            ),
        },
        {},
    ),
    "MessagesTool": body(
        {"name": FUNCTION_NAME, "input_schema": OBJECT},
        {"type": constant("custom"), "description": TEXT, "strict": BOOLEAN},
    ),
    "MessagesToolChoice": body(
        {"type": words("auto", "any", "tool", "none")},
        {"name": FUNCTION_NAME, "disable_parallel_tool_use": BOOLEAN},
    ),
    "MessagesFormat": body({"type": constant("json_schema"), "schema": OBJECT}, {}),
}
ANSWERS: dict[str, Schema] = {
    "MessagesError": closed(
        {
            "type": constant("error"),
            "error": closed({"type": TEXT, "message": TEXT}),
            "request_id": nullable(TEXT),
        }
    ),
    "MessagesMessage": closed(
        {
            "id": TEXT,
            "type": constant("message"),
            "role": constant("assistant"),
            "model": TEXT,
            "content": array(ref("MessagesBlock")),
            "stop_reason": words("end_turn", "max_tokens", "stop_sequence", "tool_use"),
            "stop_sequence": one_of(TEXT, NULL),
            "usage": closed(
                {
                    "input_tokens": INTEGER,
                    "cache_creation_input_tokens": INTEGER,
                    "cache_read_input_tokens": INTEGER,
                    "output_tokens": INTEGER,
                }
            ),
        }
    ),
    "MessagesBlock": one_of(
        closed({"type": constant("text"), "text": TEXT}),
        closed({"type": constant("thinking"), "thinking": TEXT, "signature": TEXT}),
        closed(
            {
                "type": constant("tool_use"),
                "id": TEXT,
                "name": TEXT,
                "input": {
                    **OBJECT,
                    "description": f"With {INVALID_JSON} alone where the model wrote no object.",
                },
            }
        ),
    ),
    "MessagesCount": closed({"input_tokens": INTEGER}),
}
