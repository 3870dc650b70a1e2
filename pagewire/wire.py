"""The two objects that several services put on the wire, between dataclass and message.

`SamplingParams` and `EngineConfig` mean the same in every service, so they are converted in one
place; everything else is converted by each service's own `convert`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from google.protobuf.message import Message

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, StructuredOutputs, ThinkingBudget
from pagewire.v1 import common_pb2, engine_config_pb2

# Fields whose names and shapes are alike on both sides.
_PLAIN = ("top_k", "min_p", "presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos")
_OPTIONAL = (
    "temperature",
    "top_p",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "skip_special_tokens",
    "logprobs",
    "prompt_logprobs",
)
_REPEATED = ("stop", "stop_token_ids", "allowed_token_ids", "logprob_token_ids")


def sampling_params_to_proto(params: SamplingParams) -> common_pb2.SamplingParams:
    """Build the message; of `bad_words` and `thinking_token_budget` what has token ids goes."""
    message = common_pb2.SamplingParams(
        include_stop_str_in_output=params.include_stop_str_in_output,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        allowed_token_ids=params.allowed_token_ids,
        logprob_token_ids=params.logprob_token_ids,
        logit_bias_token_ids=[token_id for token_id, _ in params.logit_bias],
        logit_bias_values=[bias for _, bias in params.logit_bias],
        bad_word_lengths=[len(word) for word in params.bad_words_token_ids],
        bad_word_token_ids=[token_id for word in params.bad_words_token_ids for token_id in word],
    )
    for name in _PLAIN:
        setattr(message, name, max(params.top_k, 0) if name == "top_k" else getattr(params, name))
    for name in _OPTIONAL:
        value = getattr(params, name)
        if value is not None:
            # A negative seed is the same 64 bits.
            setattr(message, name, value % 2**64 if name == "seed" else value)
    if params.structured_outputs is not None:
        message.structured_outputs.CopyFrom(structured_outputs_to_proto(params.structured_outputs))
    if params.thinking_budget is not None:
        message.thinking_budget.CopyFrom(_thinking_budget_to_proto(params.thinking_budget))
    return message


def sampling_params_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Read the message.

    Raises:
        InvalidRequestError: A value is out of its bounds, or columns do not fit each other.
    """
    if len(message.logit_bias_token_ids) != len(message.logit_bias_values):
        raise _columns_error("logit_bias_token_ids", "logit_bias_values")
    if len(message.bad_word_token_ids) != sum(message.bad_word_lengths):
        raise _columns_error("bad_word_lengths", "bad_word_token_ids")
    values: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
    # ListFields names the optional fields that are set; HasField wants literal names.
    present = {descriptor.name for descriptor, _ in message.ListFields()}
    values |= {name: getattr(message, name) for name in _OPTIONAL if name in present}
    values |= {name: tuple(getattr(message, name)) for name in _REPEATED}
    return SamplingParams(
        **values,
        include_stop_str_in_output=message.include_stop_str_in_output,
        logit_bias=tuple(zip(message.logit_bias_token_ids, message.logit_bias_values, strict=True)),
        bad_words_token_ids=_split(message.bad_word_token_ids, message.bad_word_lengths),
        structured_outputs=structured_outputs_from_proto(message.structured_outputs)
        if message.HasField("structured_outputs")
        else None,
        thinking_budget=_thinking_budget_from_proto(message.thinking_budget)
        if message.HasField("thinking_budget")
        else None,
    )


def structured_outputs_to_proto(outputs: StructuredOutputs) -> common_pb2.StructuredOutputs:
    """Build the message."""
    message = common_pb2.StructuredOutputs(
        reasoning_end=outputs.reasoning_end, reasoning_start=outputs.reasoning_start
    )
    if outputs.choice:
        message.choice.choices.extend(outputs.choice)
    else:
        for name in ("json_schema", "json_object", "regex", "grammar", "structural_tag"):
            if value := getattr(outputs, name):
                setattr(message, name, value)
    return message


def structured_outputs_from_proto(message: common_pb2.StructuredOutputs) -> StructuredOutputs:
    """Read the message.

    Raises:
        InvalidRequestError: Not exactly one form is set, or its text is empty.
    """
    values: dict[str, Any] = {}
    kind = message.WhichOneof("constraint")
    if kind is not None:
        value = getattr(message, kind)
        values[kind] = tuple(message.choice.choices) if kind == "choice" else value
    return StructuredOutputs(
        **values,
        reasoning_end=message.reasoning_end,
        reasoning_start=message.reasoning_start,
    )


def _thinking_budget_to_proto(budget: ThinkingBudget) -> common_pb2.ThinkingBudget:
    return common_pb2.ThinkingBudget(
        max_tokens=budget.max_tokens,
        start_token_ids=budget.start_token_ids,
        end_token_ids=budget.end_token_ids,
        num_open_tokens=budget.num_open_tokens,
    )


def _thinking_budget_from_proto(message: common_pb2.ThinkingBudget) -> ThinkingBudget:
    is_open = message.HasField("num_open_tokens")
    return ThinkingBudget(
        max_tokens=message.max_tokens,
        start_token_ids=tuple(message.start_token_ids),
        end_token_ids=tuple(message.end_token_ids),
        num_open_tokens=message.num_open_tokens if is_open else None,
    )


def _columns_error(first: str, second: str) -> InvalidRequestError:
    return InvalidRequestError(f"{first} and {second} do not fit each other", field=first)


def engine_config_to_proto(config: EngineConfig) -> engine_config_pb2.EngineConfig:
    """Build the message, field by field of the same name."""
    message = engine_config_pb2.EngineConfig()
    _copy_to_proto(config, message)
    return message


def engine_config_from_proto(message: engine_config_pb2.EngineConfig) -> EngineConfig:
    """Read the message.

    Raises:
        ValueError: (name, value, rule) of a value that its config refuses.
    """
    config = _dataclass_from_proto(EngineConfig, message)
    if not isinstance(config, EngineConfig):  # for the type checker: the function is generic
        raise TypeError(type(config))
    return config


def _copy_to_proto(config: Any, message: Message) -> None:
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            part = getattr(message, item.name)
            part.SetInParent()
            _copy_to_proto(value, part)
        elif isinstance(value, tuple):
            getattr(message, item.name).extend(value)
        elif value is not None:
            setattr(message, item.name, value)


def _dataclass_from_proto(cls: Any, message: Message) -> Any:
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for item in fields(cls):
        value = getattr(message, item.name)
        if is_dataclass(hints[item.name]):
            values[item.name] = _dataclass_from_proto(hints[item.name], value)
        elif item.default == ():
            values[item.name] = tuple(value)
        elif item.default is None:
            values[item.name] = value if message.HasField(item.name) else None
        else:
            values[item.name] = value
    return cls(**values)


def _split(flat: Any, lengths: Any) -> tuple[tuple[int, ...], ...]:
    words, start = [], 0
    for length in lengths:
        words.append(tuple(flat[start : start + length]))
        start += length
    return tuple(words)
