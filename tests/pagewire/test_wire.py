from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine_config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, StructuredOutputs, ThinkingBudget
from pagewire.v1 import common_pb2, engine_config_pb2
from pagewire.wire import (
    engine_config_from_proto,
    engine_config_to_proto,
    sampling_params_from_proto,
    sampling_params_to_proto,
)

token_ids = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=9)
structured_outputs = st.one_of(
    st.builds(StructuredOutputs, json_schema=texts),
    st.just(StructuredOutputs(json_object=True)),
    st.builds(StructuredOutputs, regex=texts),
    st.builds(StructuredOutputs, choice=st.lists(texts, min_size=1, max_size=3).map(tuple)),
    st.builds(StructuredOutputs, grammar=texts),
    st.builds(StructuredOutputs, structural_tag=texts),
    st.builds(
        StructuredOutputs,
        regex=texts,
        reasoning_end=st.just("</think>"),
        reasoning_start=st.sampled_from(["", "<think>"]),
    ),
)


logprobs = st.one_of(
    st.fixed_dictionaries({"logprobs": st.none() | st.integers(0, 20)}),
    st.lists(token_ids, max_size=5, unique=True).map(lambda ids: {"logprob_token_ids": tuple(ids)}),
)


tags = st.lists(token_ids, min_size=1, max_size=3).map(tuple)
counts = st.integers(0, 2**31 - 1)
thinking_budgets = st.builds(ThinkingBudget, counts, tags, tags, st.none() | counts)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    min_tokens = draw(st.integers(0, 5))
    return SamplingParams(
        temperature=draw(st.floats(0, 2)),
        top_p=draw(st.floats(0.01, 1)),
        top_k=draw(st.integers(0, 100)),
        min_p=draw(st.floats(0, 1)),
        repetition_penalty=draw(st.floats(0.1, 2)),
        presence_penalty=draw(st.floats(-2, 2)),
        seed=draw(st.none() | st.integers(0, 2**64 - 1)),
        max_tokens=draw(st.none() | st.integers(5, 1000)),
        min_tokens=min_tokens,
        stop=tuple(draw(st.lists(st.text(min_size=1, max_size=5), max_size=4))),
        stop_token_ids=tuple(draw(st.lists(token_ids, max_size=3))),
        ignore_eos=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        include_stop_str_in_output=draw(st.booleans()),
        **draw(logprobs),
        logit_bias=tuple(draw(st.lists(st.tuples(token_ids, st.floats(-100, 100)), max_size=3))),
        bad_words_token_ids=tuple(
            tuple(word) for word in draw(st.lists(st.lists(token_ids, min_size=1), max_size=3))
        ),
        structured_outputs=draw(st.none() | structured_outputs),
        thinking_budget=draw(st.none() | thinking_budgets),
    )


@given(sampling_params())
def test_sampling_params_survive_the_wire(params: SamplingParams) -> None:
    data = sampling_params_to_proto(params).SerializeToString()
    message = type(sampling_params_to_proto(params)).FromString(data)
    assert sampling_params_from_proto(message) == params


def test_an_empty_message_means_the_defaults() -> None:
    message = sampling_params_to_proto(SamplingParams())
    assert sampling_params_from_proto(type(message)()) == SamplingParams()


def test_structured_outputs_without_a_form_are_refused() -> None:
    message = common_pb2.SamplingParams(structured_outputs=common_pb2.StructuredOutputs())
    with pytest.raises(InvalidRequestError, match="exactly one of"):
        sampling_params_from_proto(message)


def test_a_negative_seed_keeps_its_64_bits() -> None:
    message = sampling_params_to_proto(SamplingParams(seed=-1))
    assert sampling_params_from_proto(message).seed == 2**64 - 1


def test_engine_config_survives_the_wire() -> None:
    config = EngineConfig(
        model=ModelConfig(model="m", served_model_name=("a", "b"), max_model_len=77),
        cache=CacheConfig(num_gpu_blocks_override=9, kv_cache_memory_bytes=2**40),
        scheduler=SchedulerConfig(max_num_batched_tokens=999),
    )
    assert engine_config_from_proto(engine_config_to_proto(config)) == config


def test_unset_options_stay_unset_on_the_wire() -> None:
    assert engine_config_from_proto(engine_config_to_proto(EngineConfig())) == EngineConfig()


def test_message_and_dataclass_have_the_same_fields() -> None:
    message = engine_config_pb2.EngineConfig
    assert [item.name for item in fields(EngineConfig)] == list(message.DESCRIPTOR.fields_by_name)
    for item in fields(EngineConfig):
        part = message.DESCRIPTOR.fields_by_name[item.name].message_type
        config = getattr(EngineConfig(), item.name)
        assert [f.name for f in fields(config)] == list(part.fields_by_name), item.name


@pytest.mark.parametrize(
    "message",
    [
        common_pb2.SamplingParams(logit_bias_token_ids=[1, 2], logit_bias_values=[1.0]),
        common_pb2.SamplingParams(bad_word_lengths=[2], bad_word_token_ids=[1, 2, 3]),
    ],
)
def test_columns_that_do_not_fit_are_refused(message: common_pb2.SamplingParams) -> None:
    with pytest.raises(InvalidRequestError, match="do not fit"):
        sampling_params_from_proto(message)
