import pytest
from smg_grpc_proto.generated import vllm_engine_pb2

from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, StructuredOutputs
from scheduler_svc.vllm_engine.parameters import MAX_N, generate_parameters, sampling_params
from tests.scheduler_svc.vllm_engine.conftest import generate_request


def read(request, max_model_len=64):
    return generate_parameters(request, max_model_len=max_model_len, max_logprobs=5)


def refused_field(request):
    with pytest.raises(InvalidRequestError) as error:
        read(request)
    return error.value.field


def message(**fields):
    return vllm_engine_pb2.SamplingParams(**fields)


def test_numbers_that_were_not_set_mean_the_defaults():
    assert sampling_params(message(skip_special_tokens=True)) == SamplingParams().normalized()


def test_every_field_arrives():
    params = sampling_params(
        message(
            temperature=0.5,
            top_p=0.25,
            top_k=7,
            min_p=0.125,
            frequency_penalty=0.5,
            presence_penalty=-0.5,
            repetition_penalty=1.5,
            max_tokens=9,
            min_tokens=2,
            stop=["a"],
            stop_token_ids=[3],
            skip_special_tokens=True,
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=1,
            seed=-4,
            include_stop_str_in_output=True,
            logit_bias={5: 1.0, 2: -1.0},
        )
    )
    assert params == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        max_tokens=9,
        min_tokens=2,
        stop=("a",),
        stop_token_ids=(3,),
        ignore_eos=True,
        logprobs=0,
        prompt_logprobs=1,
        seed=-4,
        include_stop_str_in_output=True,
        logit_bias=((2, -1.0), (5, 1.0)),
    )


def test_a_structural_tag_arrives_as_it_is():
    form = sampling_params(message(structural_tag='{"format": {}}')).structured_outputs
    assert form is not None
    assert form.structural_tag == '{"format": {}}'


def test_a_temperature_of_0_is_greedy():
    assert sampling_params(message(temperature=0)).is_greedy


@pytest.mark.parametrize(
    ("constraint", "form"),
    [
        ({"json_schema": "{}"}, StructuredOutputs(json_schema="{}")),
        ({"regex": "a+"}, StructuredOutputs(regex="a+")),
        ({"grammar": 'start: "a"'}, StructuredOutputs(grammar='start: "a"')),
        ({"json_object": True}, StructuredOutputs(json_object=True)),
        ({"json_object": False}, None),
        ({"choice": {"choices": ["a", "b"]}}, StructuredOutputs(choice=("a", "b"))),
        ({}, None),
    ],
)
def test_forms_map(constraint, form):
    assert sampling_params(message(**constraint)).structured_outputs == form


def test_outputs_differ_in_their_seeds():
    seeds = [params.seed for params in read(generate_request(n=3, seed=-1)).choices]
    assert seeds == [2**64 - 1, 0, 1]


def test_without_a_seed_there_is_a_random_one():
    first, second = (read(generate_request()).choices[0].seed for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("num_kept", "max_tokens", "expected"), [(2, 5, 2), (-1, 60, 4), (100, 5, 9)]
)
def test_a_prompt_is_truncated_from_the_left(num_kept, max_tokens, expected):
    request = generate_request(truncate_prompt_tokens=num_kept, max_tokens=max_tokens)
    prompt = list(request.tokenized.input_ids)
    assert read(request).prompt_token_ids == prompt[-expected:]


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("logprobs", {"logprobs": -1}),
        ("logprobs", {"logprobs": 6}),
        ("prompt_logprobs", {"prompt_logprobs": 6}),
        ("n", {"n": MAX_N + 1}),
        ("max_tokens", {"max_tokens": 0}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
        ("temperature", {"temperature": 3.0}),
    ],
)
def test_parameters_that_are_not_served_are_named(field, params):
    assert refused_field(generate_request(**params)) == field


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("text", {"text": "a"}),
        ("mm_inputs", {"mm_inputs": vllm_engine_pb2.MultimodalInputs()}),
        ("media_refs", {"media_refs": vllm_engine_pb2.MediaRefs()}),
        ("kv_transfer_params_json", {"kv_transfer_params_json": "{}"}),
        ("data_parallel_rank", {"data_parallel_rank": 1}),
    ],
)
def test_requests_that_are_not_served_are_named(field, fields):
    request = generate_request()
    request.MergeFrom(vllm_engine_pb2.GenerateRequest(**fields))
    assert refused_field(request) == field


def test_rank_0_is_the_one_there_is():
    request = generate_request()
    request.data_parallel_rank = 0
    assert len(read(request).choices) == 1
