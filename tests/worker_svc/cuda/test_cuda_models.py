"""Models on a CUDA device against transformers in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagewire.engine_config import LoadConfig
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.cuda.cuda_models import (
    load_runner,
    make_config,
    run_prompts,
    with_attention,
    write_model,
)
from tests.worker_svc.cuda.devices import needs_cuda, of_triton
from tests.worker_svc.reference import greedy
from tests.worker_svc.runner_factories import make_prompts
from tests.worker_svc.step_driver import GREEDY

pytestmark = [needs_cuda, of_triton]

LENGTHS = (3, 17, 40, 200)
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"architecture": "Qwen2"},
    "qwen3": {"architecture": "Qwen3", "head_dim": 128},
    "mistral window": {"architecture": "Mistral", "sliding_window": 20},
    "gpt_neox": {"architecture": "GPTNeoX"},
    "gemma2": {"architecture": "Gemma2", "head_dim": 64},
}
CLEAR_GAP = 6.0
"""Logits this far apart, of up to 60, are not confused by bfloat16."""


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_gives_the_greedy_tokens_of_transformers(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path, **VARIANTS[name])
    runner = load_runner(make_config(tmp_path, "float32"))
    requests = run_prompts(runner, LENGTHS, GREEDY, chunk=48)
    for request, prompt in zip(requests, make_prompts(LENGTHS), strict=True):
        assert request.output_token_ids == greedy(model, prompt, 12).token_ids


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_half_types_give_its_clear_tokens(tmp_path: Path, name: str, dtype: str) -> None:
    """Up to the first one that is not clear, after which the sequences may differ."""
    model = write_model(tmp_path, **VARIANTS[name])
    runner = load_runner(make_config(tmp_path, dtype))
    num_compared = 0
    for request, prompt in zip(
        run_prompts(runner, LENGTHS, GREEDY, chunk=48), make_prompts(LENGTHS), strict=True
    ):
        reference = greedy(model, prompt, 12)
        for token_id, expected, gap in zip(
            request.output_token_ids, reference.token_ids, reference.gaps, strict=True
        ):
            if token_id != expected:
                assert gap < CLEAR_GAP
                break
            num_compared += 1
    assert num_compared > 12


def test_the_backend_is_chosen_by_type(tmp_path: Path) -> None:
    write_model(tmp_path)
    chosen = {
        dtype: load_runner(make_config(tmp_path, dtype)).load(lambda stage, fraction: None)
        for dtype in ("auto", "float32")
    }
    backends = {dtype: info.attention_backend for dtype, info in chosen.items()}
    assert backends == {"auto": "xformers", "float32": "torch"}
    assert {dtype: info.dtype for dtype, info in chosen.items()} == {
        "auto": "bfloat16",
        "float32": "float32",
    }
    assert {info.device for info in chosen.values()} == {"cuda"}


def test_what_cannot_run_on_cuda_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    config = make_config(tmp_path)
    for model, told in (
        (replace(config.model, quantization="int8"), "leave --quantization out"),
        (replace(config.model, batch_invariant=True), "leave --batch-invariant out"),
    ):
        with pytest.raises(ValueError, match=told):
            load_runner(replace(config, model=model))
    with pytest.raises(ValueError, match="bfloat16 or float16"):
        load_runner(with_attention(make_config(tmp_path, "float32"), "xformers"))


def test_the_sampler_of_the_device_draws_what_that_of_a_cpu_draws(tmp_path: Path) -> None:
    """In float32 on both, so that logits are nearly the same."""
    write_model(tmp_path)
    config = make_config(tmp_path, "float32")
    on_cpu = replace(config, device=replace(config.device, device="cpu"))
    for params in (
        SamplingParams(temperature=0.8, seed=1, logprobs=3),
        SamplingParams(temperature=1.2, top_p=0.9, top_k=20, seed=2),
        SamplingParams(temperature=0.7, min_p=0.1, seed=3, repetition_penalty=1.2),
        SamplingParams(temperature=0.0, logit_bias=((5, 3.0),), presence_penalty=0.5),
    ):
        there, here = (
            run_prompts(load_runner(chosen), LENGTHS, params) for chosen in (config, on_cpu)
        )
        assert [r.output_token_ids for r in there] == [r.output_token_ids for r in here]


def test_dummy_weights_are_the_same_at_each_load(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    config = replace(make_config(tmp_path), load=LoadConfig(load_format="dummy"))
    outputs = [
        [r.output_token_ids for r in run_prompts(load_runner(config), LENGTHS, GREEDY)]
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1]
