"""Schemas of request bodies. Names that are refused whatever their value are not there."""

from __future__ import annotations

from gateway.http.chat_tools import MAX_TOOLS
from gateway.http.openapi.schemas import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    TEXT,
    Schema,
    array,
    body,
    constant,
    integer,
    number,
    one_of,
    ref,
    words,
)
from gateway.http.responses.request import INCLUDABLE
from pagewire.sampling_params import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS, MAX_STOP_STRINGS

TOKEN_ID = integer(0)

STOP = {**TEXT, "minLength": 1}
_HINTS: dict[str, Schema] = {
    "user": TEXT,
    "safety_identifier": TEXT,
    "prompt_cache_key": TEXT,
    "service_tier": TEXT,
}
SAMPLING: dict[str, Schema] = {
    "temperature": number(0, 2),
    "top_p": {**number(0, 1), "exclusiveMinimum": 0},
    "top_k": integer(-1),
    "min_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "repetition_penalty": {"type": "number", "minimum": 1e-6, "maximum": 1e6},
    "seed": {**INTEGER, "minimum": -(2**63), "maximum": 2**64 - 1},
    "min_tokens": integer(0),
    "stop": one_of(STOP, array(STOP, maxItems=MAX_STOP_STRINGS)),
    "stop_token_ids": array(TOKEN_ID),
    "include_stop_str_in_output": BOOLEAN,
    "ignore_eos": BOOLEAN,
    "skip_special_tokens": BOOLEAN,
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": number(-100, 100),
    },
    "allowed_token_ids": array(TOKEN_ID),
    "bad_words": one_of(STOP, array(STOP)),
    "structured_outputs": ref("StructuredOutputs"),
    "thinking_token_budget": integer(-1),
    "cache_salt": {**TEXT, "minLength": 1},
    "priority": integer(-(2**31), 2**31 - 1),
    "stream": BOOLEAN,
    "model": TEXT,
}
_GENERATION: dict[str, Schema] = SAMPLING | {
    "n": integer(1),
    "max_tokens": integer(1),
    "stream_options": ref("StreamOptions"),
    "response_format": ref("ResponseFormat"),
    "prompt_logprobs": integer(0, MAX_LOGPROBS),
    "echo": BOOLEAN,
    "return_token_ids": BOOLEAN,
    "return_tokens_as_token_ids": BOOLEAN,
    "request_id": {**TEXT, "maxLength": 128},
    "truncate_prompt_tokens": integer(-1),
    "truncation_side": words("left", "right"),
    "add_special_tokens": BOOLEAN,
}
# The schema has no word for what it needs beside it: logprobs.
_LOGPROB_TOKEN_IDS = array(
    TOKEN_ID, minItems=1, maxItems=MAX_LOGPROB_TOKEN_IDS, uniqueItems=True
) | {"description": "Only with logprobs."}
_TEMPLATE: dict[str, Schema] = {
    "add_generation_prompt": BOOLEAN,
    "continue_final_message": BOOLEAN,
    "chat_template_kwargs": OBJECT,
    "documents": array(OBJECT),
    "reasoning_effort": words("none", "minimal", "low", "medium", "high", "xhigh"),
    "tools": array(ref("ChatTool"), minItems=1, maxItems=MAX_TOOLS),
    "tool_choice": one_of(words("none", "auto", "required"), ref("ChatToolChoice")),
    "parallel_tool_calls": BOOLEAN,
    "include_reasoning": BOOLEAN,
}
_TEXT_PART = {
    "type": "object",
    "properties": {"type": constant("text"), "text": TEXT},
    "required": ["type", "text"],
}
FUNCTION_NAME = {**TEXT, "pattern": r"^[a-zA-Z0-9_.:/-]{1,128}$"}
_FORMAT_TYPES = ("text", "json_object", "json_schema")
_STRUCTURAL_TAG: dict[str, Schema] = {
    "format": body({"type": TEXT}, {}),
    "structures": array(ref("TaggedStructure"), minItems=1),
    "triggers": array(TEXT, minItems=1),
}

COMPLETION = body(
    {
        "prompt": one_of(
            TEXT,
            array(TOKEN_ID, minItems=1),
            array(TEXT, minItems=1),
            array(array(TOKEN_ID, minItems=1), minItems=1),
        )
    },
    _GENERATION
    | _HINTS
    | {"logprobs": integer(0, MAX_LOGPROBS), "logprob_token_ids": _LOGPROB_TOKEN_IDS},
)
CHAT = body(
    {"messages": array(ref("ChatMessage"), minItems=1)},
    _GENERATION
    | _TEMPLATE
    | _HINTS
    | {
        "max_completion_tokens": integer(1),
        "logprobs": BOOLEAN,
        "top_logprobs": integer(0, MAX_LOGPROBS),
        "logprob_token_ids": _LOGPROB_TOKEN_IDS,
        "metadata": OBJECT,
        "store": BOOLEAN,
        "verbosity": words("low", "medium", "high"),
    },
)
RESPONSE = body(
    {"input": one_of(TEXT, array(ref("InputItem"), minItems=1))},
    SAMPLING
    | _HINTS
    | {
        "instructions": TEXT,
        "previous_response_id": TEXT,
        "max_output_tokens": integer(1),
        "max_tool_calls": integer(1),
        "tools": array(ref("FunctionTool"), maxItems=MAX_TOOLS),
        "tool_choice": one_of(words("none", "auto", "required"), ref("FunctionChoice")),
        "parallel_tool_calls": BOOLEAN,
        "reasoning": ref("ReasoningOptions"),
        "text": ref("TextOptions"),
        "include": array(words(*INCLUDABLE)),
        "top_logprobs": integer(0, MAX_LOGPROBS),
        "truncation": words("auto", "disabled"),
        "metadata": {
            "type": "object",
            "maxProperties": 16,
            "propertyNames": {"maxLength": 64},
            "additionalProperties": {**TEXT, "maxLength": 512},
        },
        "store": BOOLEAN,
        "background": constant(False),
        "chat_template_kwargs": OBJECT,
    },
)
_TEMPLATE_OF_TOKENIZE = {
    name: schema for name, schema in _TEMPLATE.items() if name != "include_reasoning"
}
TOKENIZE = body(
    {},
    {
        "prompt": TEXT,
        "messages": array(ref("ChatMessage"), minItems=1),
        "model": TEXT,
        "add_special_tokens": BOOLEAN,
        "return_token_strs": BOOLEAN,
    }
    | _TEMPLATE_OF_TOKENIZE,
)
DETOKENIZE = body({"tokens": array(TOKEN_ID)}, {"model": TEXT})

PARTS: dict[str, Schema] = {
    "ChatMessage": body(
        {"role": words("developer", "system", "user", "assistant", "tool", "function")},
        {
            "content": one_of(TEXT, array(_TEXT_PART)),
            "name": TEXT,
            "tool_calls": array(ref("ChatToolCall")),
            "tool_call_id": TEXT,
            "reasoning_content": TEXT,
        },
    ),
    "ChatToolCall": body(
        {"id": TEXT, "type": constant("function"), "function": ref("CalledFunction")}, {}
    ),
    "CalledFunction": body({"name": TEXT, "arguments": TEXT}, {}),
    "ChatTool": body({"type": constant("function"), "function": ref("Function")}, {}),
    "Function": body(
        {"name": FUNCTION_NAME}, {"description": TEXT, "parameters": OBJECT, "strict": BOOLEAN}
    ),
    "ChatToolChoice": one_of(
        ref("NamedChatTool"),
        body(
            {
                "type": constant("allowed_tools"),
                "allowed_tools": body(
                    {
                        "mode": words("auto", "required"),
                        "tools": array(ref("NamedChatTool"), minItems=1, maxItems=MAX_TOOLS),
                    },
                    {},
                ),
            },
            {},
        ),
    ),
    "NamedChatTool": body(
        {"type": constant("function"), "function": body({"name": FUNCTION_NAME}, {})}, {}
    ),
    "FunctionTool": body(
        {"type": constant("function"), "name": FUNCTION_NAME},
        {"description": TEXT, "parameters": OBJECT, "strict": BOOLEAN},
    ),
    "FunctionChoice": one_of(
        ref("NamedFunction"),
        body(
            {
                "type": constant("allowed_tools"),
                "mode": words("auto", "required"),
                "tools": array(ref("NamedFunction"), minItems=1, maxItems=MAX_TOOLS),
            },
            {},
        ),
    ),
    "NamedFunction": body({"type": constant("function"), "name": FUNCTION_NAME}, {}),
    "StreamOptions": body({}, {"include_usage": BOOLEAN, "continuous_usage_stats": BOOLEAN}),
    "StructuredOutputs": {
        **body(
            {},
            {
                "json": one_of(OBJECT, TEXT),
                "json_object": BOOLEAN,
                "regex": TEXT,
                "choice": array(TEXT, minItems=1),
                "grammar": TEXT,
                "structural_tag": one_of(ref("StructuralTag"), TEXT),
            },
        ),
        "description": "Exactly one of these.",
    },
    "ResponseFormat": body(
        {"type": words(*_FORMAT_TYPES, "structural_tag")},
        {"json_schema": ref("JsonSchemaFormat"), **_STRUCTURAL_TAG},
    ),
    "StructuralTag": {
        **body({}, _STRUCTURAL_TAG),
        "description": "A format, or structures with their triggers.",
    },
    "TaggedStructure": body({"begin": TEXT, "schema": OBJECT, "end": TEXT}, {}),
    "JsonSchemaFormat": body({"schema": OBJECT}, {"name": TEXT, "strict": BOOLEAN}),
    "TextOptions": body(
        {},
        {
            "format": body(
                {"type": words(*_FORMAT_TYPES)},
                {"name": TEXT, "schema": OBJECT, "strict": BOOLEAN, "description": TEXT},
            ),
            "verbosity": words("low", "medium", "high"),
        },
    ),
    "ReasoningOptions": body(
        {},
        {
            "effort": words("none", "minimal", "low", "medium", "high", "xhigh"),
            "summary": words("auto", "concise", "detailed"),
        },
    ),
    "InputItem": one_of(
        body(
            {
                "role": words("developer", "system", "user", "assistant"),
                "content": one_of(TEXT, array(ref("InputPart"))),
            },
            {"type": constant("message")},
        ),
        body(
            {
                "type": constant("function_call"),
                "call_id": TEXT,
                "name": TEXT,
                "arguments": TEXT,
            },
            {},
        ),
        body(
            {
                "type": constant("function_call_output"),
                "call_id": TEXT,
                "output": one_of(TEXT, array(ref("InputPart"))),
            },
            {},
        ),
        body(
            {"type": constant("reasoning")},
            {
                "content": array(body({"type": constant("reasoning_text"), "text": TEXT}, {})),
                "summary": array(body({"type": constant("summary_text"), "text": TEXT}, {})),
            },
        ),
    ),
    "InputPart": body({"type": words("input_text", "output_text", "text"), "text": TEXT}, {}),
}
