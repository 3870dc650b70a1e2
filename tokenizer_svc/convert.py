"""Between protobuf messages and the service's own types; the only place that reads or builds them.

Checks the form of what comes in: JSON, columns of equal length. Limits are the engine's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, NoReturn

from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.json_depth import is_too_deep
from pagewire.v1 import common_pb2, tokenizer_pb2
from tokenizer_svc.chat_template import ChatRequest
from tokenizer_svc.detokenize_session import OpenRequest, TextFrame, TokenFrame, TokenRow
from tokenizer_svc.detokenizer import DetokenizeOptions
from tokenizer_svc.tokenizer_engine import RenderedChat, TokenizerEngine

_CHUNK_BYTES = 1 << 20


def info_to_proto(engine: TokenizerEngine) -> tokenizer_pb2.GetTokenizerInfoResponse:
    model = engine.model
    return tokenizer_pb2.GetTokenizerInfoResponse(
        fingerprint=model.fingerprint,
        vocab_size=model.vocabulary.size,
        eos_token_ids=model.eos_token_ids,
        bos_token_id=model.bos_token_id,
        has_chat_template=bool(engine.templates.templates),
        template_uses_tools=engine.templates.uses_tools,
        max_prompt_bytes=engine.limits.max_prompt_bytes,
        tool_call_format=engine.templates.tool_call_format,
    )


def rows_to_proto(rows: Sequence[Sequence[int]]) -> tokenizer_pb2.EncodeResponse:
    return tokenizer_pb2.EncodeResponse(rows=[common_pb2.TokenIds(ids=row) for row in rows])


def rendered_to_proto(rendered: RenderedChat) -> tokenizer_pb2.RenderChatResponse:
    return tokenizer_pb2.RenderChatResponse(text=rendered.text, token_ids=rendered.token_ids)


def flag(message: Any, name: str, default: bool) -> bool:
    """An optional bool's value, or its default."""
    return bool(getattr(message, name)) if message.HasField(name) else default


def chat_from_proto(message: tokenizer_pb2.RenderChatRequest) -> ChatRequest:
    """Read a conversation.

    Raises:
        InvalidRequestError: A JSON field is not what it should be.
    """
    continues = message.continue_final_message
    return ChatRequest(
        messages=[
            _message(item, f"messages[{index}]") for index, item in enumerate(message.messages)
        ],
        tools=_json(message.tools_json, list, "tools_json"),
        template_arguments=_json(message.template_arguments_json, dict, "template_arguments_json"),
        # A message that goes on has no new turn after it, unless the request insists.
        add_generation_prompt=flag(message, "add_generation_prompt", not continues),
        continue_final_message=continues,
        chat_template=message.chat_template or None,
        add_special_tokens=message.add_special_tokens,
    )


def _message(message: tokenizer_pb2.TemplateMessage, path: str) -> dict[str, Any]:
    if not message.role:
        raise InvalidRequestError("a message needs a role", field=f"{path}.role")
    # Absent content is empty: templates print what they get, and None would be printed.
    converted: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("name", "tool_call_id"):
        if value := getattr(message, name):
            converted[name] = value
    if message.reasoning_content:
        # Templates read it under either name.
        converted["reasoning_content"] = converted["reasoning"] = message.reasoning_content
    if message.tool_calls_json:
        field = f"{path}.tool_calls_json"
        calls = _json(message.tool_calls_json, list, field)
        converted["tool_calls"] = [_tool_call(call, field) for call in calls]
    return converted


def _tool_call(call: Any, field: str) -> dict[str, Any]:
    """A call with its arguments as an object, as templates want them, not as OpenAI's string."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidRequestError("a tool call needs a function", field=field)
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str):
        arguments = _json(arguments or "", dict, field)
    return {**call, "function": {**function, "arguments": arguments}}


def _json(text: str, kind: type, field: str) -> Any:
    if not text:
        return kind()
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidRequestError("this is not valid JSON", field=field) from None
    if not isinstance(value, kind):
        name = "array" if kind is list else "object"
        raise InvalidRequestError(f"this must be a JSON {name}", field=field)
    if is_too_deep(text, value):
        raise InvalidRequestError("this JSON is nested too deeply", field=field)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def frame_from_proto(message: tokenizer_pb2.DetokenizeRequest) -> TokenFrame:
    """Read a frame's columns.

    Raises:
        InvalidRequestError: The columns do not fit together; nothing of the frame can be trusted.
    """
    num_rows = len(message.handles)
    stops = message.last_is_stop_token or [False] * num_rows
    lengths = {len(message.token_counts), len(message.ends), len(stops)}
    if lengths != {num_rows}:
        raise InvalidRequestError("columns of rows differ in length", field="handles")
    if sum(message.token_counts) != len(message.token_ids):
        raise InvalidRequestError("token_counts does not add up to token_ids", field="token_ids")
    if message.extra_counts and (
        len(message.extra_counts) != num_rows
        or sum(message.extra_counts) != len(message.extra_token_ids)
    ):
        raise InvalidRequestError("extra_counts does not fit", field="extra_token_ids")
    rows, start, token_ids = [], 0, list(message.token_ids)
    columns = zip(message.handles, message.token_counts, message.ends, stops, strict=True)
    for handle, count, end, last_is_stop_token in columns:
        rows.append(TokenRow(handle, token_ids[start : start + count], end, last_is_stop_token))
        start += count
    return TokenFrame(
        opens=[_open(opened) for opened in message.opens],
        rows=rows,
        closes=message.closes,
        extra_token_ids=message.extra_token_ids,
        num_new_tokens=len(token_ids),
    )


def _open(message: tokenizer_pb2.DetokenizeOpen) -> OpenRequest:
    options = DetokenizeOptions(
        stop=tuple(message.stop),
        include_stop_str_in_output=message.include_stop_str_in_output,
        skip_special_tokens=flag(message, "skip_special_tokens", True),
        min_tokens=message.min_tokens,
        context_token_ids=tuple(message.context_token_ids),
    )
    return OpenRequest(message.handle, options, message.output_token_ids)


def answer_to_proto(frame: int, answer: TextFrame) -> tokenizer_pb2.DetokenizeResponse:
    return tokenizer_pb2.DetokenizeResponse(
        frame=frame,
        handles=answer.handles,
        texts=answer.texts,
        token_offsets=answer.token_offsets,
        stop_handles=answer.stop_handles,
        stop_indexes=answer.stop_indexes,
        stop_token_offsets=answer.stop_token_offsets,
        extra_token_bytes=answer.extra_token_bytes,
        errors=[
            tokenizer_pb2.DetokenizeError(handle=handle, message=message)
            for handle, message in answer.errors
        ],
    )


def vocabulary_slices(
    engine: TokenizerEngine, slice_size: int
) -> Iterator[tokenizer_pb2.GetVocabularyResponse]:
    """The vocabulary in slices of `slice_size`, in id order."""
    vocabulary = engine.model.vocabulary
    for first in range(0, vocabulary.size, slice_size):
        tokens = vocabulary.token_bytes[first : first + slice_size]
        ids = range(first, first + len(tokens))
        yield tokenizer_pb2.GetVocabularyResponse(
            first_token_id=first,
            tokens=tokens,
            special_token_ids=[token_id for token_id in ids if token_id in vocabulary.special_ids],
        )


def file_chunks(name: str, content: bytes) -> Iterator[tokenizer_pb2.GetTokenizerFilesResponse]:
    """One file in chunks; the last one carries the digest."""
    digest = sha256(content).hexdigest()
    for start in range(0, max(len(content), 1), _CHUNK_BYTES):
        is_last = start + _CHUNK_BYTES >= len(content)
        yield tokenizer_pb2.GetTokenizerFilesResponse(
            name=name,
            size=len(content),
            chunk=content[start : start + _CHUNK_BYTES],
            sha256=digest if is_last else "",
        )
