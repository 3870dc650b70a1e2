"""Schemas of answers. They have no fields but these."""

from __future__ import annotations

from gateway.http.openapi.schemas import (
    BOOLEAN,
    INTEGER,
    NULL,
    NUMBER,
    OBJECT,
    TEXT,
    Schema,
    array,
    closed,
    constant,
    nullable,
    one_of,
    ref,
    words,
)

_FINISH_REASON = nullable(words("stop", "length", "abort", "repetition", "tool_calls"))
_STOP_REASON = one_of(TEXT, INTEGER, NULL)
_PROMPT_LOGPROBS = array(nullable(OBJECT))
_ITEM_STATUS = words("in_progress", "completed", "incomplete")
_HEAD: dict[str, Schema] = {
    "id": TEXT,
    "created": INTEGER,
    "model": TEXT,
    "system_fingerprint": nullable(TEXT),
    "usage": ref("Usage"),
}

SCHEMAS: dict[str, Schema] = {
    "Error": closed(
        {"error": closed({"message": TEXT, "type": TEXT, "param": nullable(TEXT), "code": INTEGER})}
    ),
    "Usage": closed(
        {
            "prompt_tokens": INTEGER,
            "completion_tokens": INTEGER,
            "total_tokens": INTEGER,
            "prompt_tokens_details": closed({"cached_tokens": INTEGER}),
        },
        {"completion_tokens_details": closed({"reasoning_tokens": INTEGER})},
    ),
    "Completion": closed(
        _HEAD
        | {
            "object": constant("text_completion"),
            "choices": array(
                closed(
                    {
                        "index": INTEGER,
                        "text": TEXT,
                        "logprobs": nullable(ref("CompletionLogprobs")),
                        "finish_reason": _FINISH_REASON,
                        "stop_reason": _STOP_REASON,
                    },
                    {
                        "token_ids": array(INTEGER),
                        "prompt_token_ids": array(INTEGER),
                        "prompt_logprobs": _PROMPT_LOGPROBS,
                    },
                )
            ),
        }
    ),
    "CompletionLogprobs": closed(
        {
            "tokens": array(TEXT),
            "token_logprobs": array(nullable(NUMBER)),
            "top_logprobs": array(nullable({"type": "object", "additionalProperties": NUMBER})),
            "text_offset": array(INTEGER),
        }
    ),
    "ChatCompletion": closed(
        _HEAD
        | {
            "object": constant("chat.completion"),
            "choices": array(
                closed(
                    {
                        "index": INTEGER,
                        "message": ref("AssistantMessage"),
                        "logprobs": nullable(ref("ChatLogprobs")),
                        "finish_reason": _FINISH_REASON,
                        "stop_reason": _STOP_REASON,
                    },
                    {"token_ids": array(INTEGER)},
                )
            ),
        },
        {"prompt_logprobs": _PROMPT_LOGPROBS, "prompt_token_ids": array(INTEGER)},
    ),
    "AssistantMessage": closed(
        {"role": constant("assistant"), "content": nullable(TEXT), "refusal": NULL},
        {
            "reasoning": nullable(TEXT),
            "reasoning_content": nullable(TEXT),
            "tool_calls": array(
                closed(
                    {
                        "id": TEXT,
                        "type": constant("function"),
                        "function": closed({"name": TEXT, "arguments": TEXT}),
                    }
                )
            ),
        },
    ),
    "ChatLogprobs": closed(
        {"content": array(ref("TokenLogprobs")), "refusal": NULL},
    ),
    "TokenLogprobs": closed(
        {
            "token": TEXT,
            "logprob": NUMBER,
            "bytes": array(INTEGER),
            "top_logprobs": array(
                closed({"token": TEXT, "logprob": NUMBER, "bytes": array(INTEGER)})
            ),
        }
    ),
    "Response": closed(
        {
            "id": TEXT,
            "object": constant("response"),
            "created_at": INTEGER,
            "status": words("in_progress", "completed", "incomplete", "failed"),
            "background": constant(False),
            "error": nullable(closed({"code": TEXT, "message": TEXT})),
            "incomplete_details": nullable(closed({"reason": TEXT})),
            "instructions": nullable(TEXT),
            "max_output_tokens": nullable(INTEGER),
            "max_tool_calls": nullable(INTEGER),
            "metadata": {"type": "object", "additionalProperties": TEXT},
            "model": TEXT,
            "output": array(ref("OutputItem")),
            "parallel_tool_calls": BOOLEAN,
            "previous_response_id": nullable(TEXT),
            "reasoning": closed({"effort": nullable(TEXT), "summary": nullable(TEXT)}),
            "service_tier": TEXT,
            "store": BOOLEAN,
            "temperature": NUMBER,
            "text": OBJECT,
            "tool_choice": one_of(TEXT, OBJECT),
            "tools": array(OBJECT),
            "top_logprobs": INTEGER,
            "top_p": NUMBER,
            "truncation": TEXT,
            "usage": nullable(ref("ResponseUsage")),
            "user": nullable(TEXT),
        }
    ),
    "ResponseUsage": closed(
        {
            "input_tokens": INTEGER,
            "input_tokens_details": closed({"cached_tokens": INTEGER}),
            "output_tokens": INTEGER,
            "output_tokens_details": closed({"reasoning_tokens": INTEGER}),
            "total_tokens": INTEGER,
        }
    ),
    "OutputItem": one_of(
        closed(
            {
                "id": TEXT,
                "type": constant("message"),
                "status": _ITEM_STATUS,
                "role": constant("assistant"),
                "content": array(
                    closed(
                        {
                            "type": constant("output_text"),
                            "text": TEXT,
                            "annotations": array(OBJECT),
                            "logprobs": array(ref("TokenLogprobs")),
                        }
                    )
                ),
            }
        ),
        closed(
            {
                "id": TEXT,
                "type": constant("reasoning"),
                "status": _ITEM_STATUS,
                "summary": array(OBJECT),
                "content": array(closed({"type": constant("reasoning_text"), "text": TEXT})),
                "encrypted_content": NULL,
            }
        ),
        closed(
            {
                "id": TEXT,
                "type": constant("function_call"),
                "status": _ITEM_STATUS,
                "call_id": TEXT,
                "name": TEXT,
                "arguments": TEXT,
            }
        ),
    ),
    "ResponseItems": closed(
        {
            "object": constant("list"),
            "data": array(ref("InputItemOfResponse")),
            "first_id": nullable(TEXT),
            "last_id": nullable(TEXT),
            "has_more": BOOLEAN,
        }
    ),
    "InputItemOfResponse": one_of(
        closed(
            {
                "id": TEXT,
                "type": constant("message"),
                "status": constant("completed"),
                "role": words("developer", "system", "user", "assistant"),
                "content": array(ref("TextPart")),
            }
        ),
        closed(
            {
                "id": TEXT,
                "type": constant("function_call"),
                "status": constant("completed"),
                "call_id": TEXT,
                "name": TEXT,
                "arguments": TEXT,
            }
        ),
        closed(
            {
                "id": TEXT,
                "type": constant("function_call_output"),
                "status": constant("completed"),
                "call_id": TEXT,
                "output": one_of(TEXT, array(ref("TextPart"))),
            }
        ),
        closed(
            {
                "id": TEXT,
                "type": constant("reasoning"),
                "status": constant("completed"),
                "summary": array(ref("TextPart")),
                "content": array(ref("TextPart")),
            }
        ),
    ),
    "TextPart": closed(
        {"type": TEXT, "text": TEXT},
        # Of an assistant's text, as in its response.
        {"annotations": array(OBJECT)},
    ),
    "TokenizerInfo": {
        "type": "object",
        "properties": {"tokenizer_class": TEXT},
        "required": ["tokenizer_class"],
    },
    "DeletedResponse": closed(
        {"id": TEXT, "object": constant("response"), "deleted": constant(True)}
    ),
    "Model": closed(
        {
            "id": TEXT,
            "object": constant("model"),
            "created": INTEGER,
            "owned_by": TEXT,
            "root": TEXT,
            "parent": nullable(TEXT),
            "max_model_len": INTEGER,
        }
    ),
    "Models": closed({"object": constant("list"), "data": array(ref("Model"))}),
    "Tokens": closed(
        {
            "count": INTEGER,
            "max_model_len": INTEGER,
            "tokens": array(INTEGER),
            "token_strs": nullable(array(TEXT)),
        }
    ),
    "DetokenizedPrompt": closed({"prompt": TEXT}),
    "Health": closed({"status": constant("ok")}),
    "Version": closed({"version": TEXT}),
    "Load": closed({"server_load": INTEGER}),
}
