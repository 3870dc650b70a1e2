"""The rules for one request that need only the engine's figures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import RequestLimits
from gateway.engine_client import EngineInfo
from gateway.generation import ChatMessage, ChatPrompt, GenerationRequest
from gateway.request_plan import check_sizes, child_params, fit_to_context, resolve_params
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams

MAX_MODEL_LEN = 100


def make_info(**defaults: Any) -> EngineInfo:
    return EngineInfo(
        served_model_names=("m",),
        max_model_len=MAX_MODEL_LEN,
        vocab_size=1000,
        eos_token_ids=frozenset({2}),
        default_sampling_params=SamplingParams(**defaults),
        engine_fingerprint="e",
        tokenizer_fingerprint="t",
        max_logprobs=20,
    )


def make_request(prompt: Any = (1, 2), **fields: Any) -> GenerationRequest:
    return GenerationRequest(model="m", prompts=(prompt,), **fields)


def max_tokens(num_prompt_tokens: int, default: int | None = None, **sampling: Any) -> int | None:
    request = make_request(sampling=sampling, default_max_tokens=default)
    params = resolve_params(request, make_info())
    return fit_to_context(params, request, num_prompt_tokens, make_info()).max_tokens


def test_the_models_defaults_fill_what_the_client_left_out() -> None:
    info = make_info(temperature=0.6, top_p=0.9)
    params = resolve_params(make_request(sampling={"top_p": 0.5}), info)
    assert (params.temperature, params.top_p) == (0.6, 0.5)


@given(num_prompt_tokens=st.integers(1, MAX_MODEL_LEN - 1), wanted=st.integers(1, 200))
def test_an_explicit_max_tokens_is_kept_or_refused(num_prompt_tokens: int, wanted: int) -> None:
    if num_prompt_tokens + wanted <= MAX_MODEL_LEN:
        assert max_tokens(num_prompt_tokens, max_tokens=wanted) == wanted
    else:
        with pytest.raises(InvalidRequestError) as caught:
            max_tokens(num_prompt_tokens, max_tokens=wanted)
        assert caught.value.field == "max_tokens"


@given(num_prompt_tokens=st.integers(1, MAX_MODEL_LEN - 1))
def test_a_default_max_tokens_is_clamped(num_prompt_tokens: int) -> None:
    room = MAX_MODEL_LEN - num_prompt_tokens
    assert max_tokens(num_prompt_tokens) == room
    assert max_tokens(num_prompt_tokens, default=16) == min(16, room)


@pytest.mark.parametrize("num_prompt_tokens", [0, MAX_MODEL_LEN])
def test_an_empty_prompt_and_one_as_long_as_the_context_are_refused(num_prompt_tokens: int) -> None:
    with pytest.raises(InvalidRequestError):
        max_tokens(num_prompt_tokens)


def test_children_have_seeds_one_apart_that_wrap_at_64_bits() -> None:
    params = SamplingParams(seed=2**64 - 1)
    assert [child_params(params, i).seed for i in range(3)] == [2**64 - 1, 0, 1]


def test_greedy_with_several_outputs_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve_params(make_request(n=2, sampling={"temperature": 0.0}), make_info())
    assert caught.value.field == "n"


@pytest.mark.parametrize("sampling", [{}, {"stop_token_ids": (7,), "allowed_token_ids": (2, 7)}])
def test_min_tokens_with_nothing_but_ends_allowed_is_refused(sampling: dict[str, Any]) -> None:
    sampling = {"allowed_token_ids": (2,), "min_tokens": 1} | sampling
    with pytest.raises(InvalidRequestError) as caught:
        resolve_params(make_request(sampling=sampling), make_info())
    assert caught.value.field == "allowed_token_ids"
    resolve_params(make_request(sampling=sampling | {"min_tokens": 0}), make_info())
    resolve_params(make_request(sampling=sampling | {"allowed_token_ids": (2, 8)}), make_info())


@pytest.mark.parametrize(
    "request_",
    [
        make_request(prompt=(1000,)),
        make_request(prompt=()),
        make_request(prompt=(1,) * MAX_MODEL_LEN),
        make_request(prompt="é" * 6),
        make_request(prompt=ChatPrompt((ChatMessage("user", "x" * 11),))),
        make_request(prompt=ChatPrompt((ChatMessage("user", "x", name="x" * 11),))),
        make_request(n=5),
        make_request(n=0),
        GenerationRequest(model="m", prompts=()),
    ],
)
def test_what_is_too_large_is_refused_before_anything_is_tokenized(
    request_: GenerationRequest,
) -> None:
    limits = RequestLimits(max_prompt_bytes=10, max_outputs_per_request=4)
    with pytest.raises(InvalidRequestError):
        check_sizes(request_, limits, make_info())
