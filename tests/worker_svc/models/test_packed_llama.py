"""Tiny random models with packed weights against the same file in PyTorch, in float32."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.engine_config import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
)
from pagewire.kit.errors import FailedPreconditionError
from pagewire.sampling_params import SamplingParams
from tests.worker_svc import tiny_models
from tests.worker_svc.step_driver import DriverRequest, StepDriver
from tests.worker_svc.tiny_gguf import write_gguf
from worker_svc import loaded_model
from worker_svc.memory_budget import CpuBudget
from worker_svc.model_runner import ModelRunner
from worker_svc.models import packed_build, packed_llama
from worker_svc.models.packed_llama import EMBEDDING, HEAD, PackedLlama
from worker_svc.weights.gguf_source import GgufSource
from worker_svc.weights.source import WeightsError, WeightSource

ROUNDING, LARGEST = 0.002, 0.01
"""Relative difference of logits, its median and the most: keys and values have 11 bits. What random
weights attend to is a choice of few keys, which rounding tips now and then."""
SPREAD = 0.2
"""Of the weights: with more, most choices hang on a rounding."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped-query": ("llama", {}),
    "multi-query, tied": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "head_dim 64": ("llama", {"head_dim": 64}),
    "head_dim 128": ("llama", {"head_dim": 128, "num_hidden_layers": 1}),
    "rope llama3": ("llama", tiny_models.VARIANTS["rope llama3"]),
    "odd vocabulary": ("llama", {"vocab_size": 203}),
    "qwen2": ("qwen2", tiny_models.VARIANTS["qwen2"]),
    "qwen3": ("qwen3", tiny_models.VARIANTS["qwen3"]),
}
TYPES = [
    *[("Q4_0", "Q4_1"), ("Q8_0", "Q4_0"), ("Q5_0", "Q8_0")],
    *[("BF16", "BF16"), ("F16", "Q8_0"), ("Q4_1", "F16")],
]
K_TYPES = [("Q4_0", "Q6_K"), ("Q8_0", "Q4_K"), ("Q4_1", "Q5_K"), ("Q4_K", "Q6_K")]
K_SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
"""Whose rows are whole blocks of 256."""


@pytest.fixture(autouse=True)
def plain_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without products of bfloat16, which 16-bit weights would be left to."""
    monkeypatch.setattr(packed_build, "multiplies_bfloat16", lambda: False)


@pytest.fixture(autouse=True)
def threads_are_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to compute: these models are tiny."""
    monkeypatch.setattr(packed_llama, "ALONE_PRODUCTS", 0)


def write(
    directory: Path,
    architecture: str = "llama",
    /,  # a field of the model may have that name
    linear_type: str = "Q4_1",
    vocabulary_type: str = "Q8_0",
    **fields: Any,
) -> Path:
    model = tiny_models.write_tiny_model(directory / "hf", initializer_range=SPREAD, **fields)
    path = directory / f"{linear_type}-{vocabulary_type}.gguf"
    write_gguf(path, model, architecture, None, linear_type, vocabulary_type)
    return path


def load(path: Path, backend: Any = "cpu", num_threads: int = 2, **model: Any) -> ModelRunner:
    runner = ModelRunner(
        EngineConfig(
            model=ModelConfig(model=str(path), **model),
            attention=AttentionConfig(attention_backend=backend),
            device=DeviceConfig(device="cpu", num_threads=num_threads),
            cache=CacheConfig(kv_cache_memory_bytes=2**24),
        )
    )
    runner.load(lambda phase, fraction: None)
    return runner


def is_packed(runner: ModelRunner) -> bool:
    return isinstance(runner._require_loaded().model, PackedLlama)


def prompts(vocab_size: int = 160) -> list[list[int]]:
    numbers = random.Random(3)
    return [[numbers.randrange(3, vocab_size) for _ in range(n)] for n in (1, 2, 15, 17, 40, 150)]


def run(
    runner: ModelRunner,
    sampling: SamplingParams,
    chunk: int = 10_000,
    preempt_after: int | None = None,
) -> list[DriverRequest]:
    driver = StepDriver(runner, num_blocks=100, chunk=chunk)
    requests = [driver.add(prompt, sampling, 12, preempt_after) for prompt in prompts()]
    driver.run()
    return requests


def raw_logits(runner: ModelRunner, prompt: list[int], vocab_size: int) -> torch.Tensor:
    """Of a prompt's last token and of the greedy tokens after it."""
    sampling = SamplingParams(temperature=1e-3, logprobs=vocab_size, seed=1)
    driver = StepDriver(runner, num_blocks=100)
    request = driver.add(prompt, sampling, max_tokens=1)
    driver.run()
    [row] = request.logprobs
    logits = torch.tensor([row[token] for token in range(vocab_size)])
    return logits - logits.mean()


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_are_those_of_the_dequantized_file(tmp_path: Path, variant: str) -> None:
    architecture, fields = VARIANTS[variant]
    path = write(tmp_path, architecture, **fields)
    check_logits(path, fields.get("vocab_size", 160))


@pytest.mark.parametrize(("linear_type", "vocabulary_type"), TYPES)
def test_each_type_of_blocks(tmp_path: Path, linear_type: str, vocabulary_type: str) -> None:
    check_logits(write(tmp_path, "llama", linear_type, vocabulary_type), 160)


@pytest.mark.parametrize(("linear_type", "vocabulary_type"), K_TYPES)
@pytest.mark.parametrize("is_tied", [False, True])
def test_k_types_beside_others(
    tmp_path: Path, linear_type: str, vocabulary_type: str, is_tied: bool
) -> None:
    sizes = {**K_SIZES, "tie_word_embeddings": is_tied}
    check_logits(write(tmp_path, "llama", linear_type, vocabulary_type, **sizes), 160)


def write_folder(directory: Path, dtype: torch.dtype, **fields: Any) -> Path:
    """A Hugging Face folder, all of whose tensors have this type."""
    tiny_models.write_tiny_model(directory, initializer_range=SPREAD, **fields)
    path = directory / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path).items()}, path)
    return directory


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", ["multi-query, tied", "qwen2", "qwen3"])
def test_16_bit_weights_of_a_folder(tmp_path: Path, variant: str, dtype: torch.dtype) -> None:
    _, fields = VARIANTS[variant]
    check_logits(write_folder(tmp_path / "model", dtype, **fields), 160)


def test_a_processor_that_multiplies_bfloat16_takes_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_build, "multiplies_bfloat16", lambda: True)
    assert is_packed(load(write(tmp_path, "llama", "Q4_1", "F16"), "auto"))
    folder = write_folder(tmp_path / "model", torch.bfloat16)
    assert not is_packed(load(folder, "auto"))
    assert is_packed(load(folder, "cpu")), "asked for by name"


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_head_in_float32_beside_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tied: bool
) -> None:
    folder = write_folder(tmp_path / "model", torch.bfloat16, tie_word_embeddings=is_tied)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    # Under a tied embedding nobody reads it.
    save_file({**tensors, HEAD: tensors[EMBEDDING].float()}, path)
    runner = load(folder, "auto")
    assert is_packed(runner) is is_tied
    with monkeypatch.context() as patch:
        patch.setattr(packed_build, "multiplies_bfloat16", lambda: True)
        assert not is_packed(load(folder, "auto"))
    digests = {
        each._require_loaded().info.weights_digest for each in (runner, load(folder, "torch"))
    }
    assert len(digests) == (2 if is_tied else 1)


def test_float64_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of a type of its own"):
        load(write_folder(tmp_path / "model", torch.float64), "cpu")


def test_float32_weights_keep_their_numbers_in_pytorch(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", torch.float32)
    assert not is_packed(load(folder, "auto"))
    with pytest.raises(ValueError, match="is F32"):
        load(folder, "cpu")


def check_logits(path: Path, vocab_size: int) -> None:
    packed, plain = load(path), load(path, "torch")
    assert (is_packed(packed), is_packed(plain)) == (True, False)
    differences = []
    for prompt in prompts(vocab_size):
        found, expected = (raw_logits(r, prompt, vocab_size) for r in (packed, plain))
        differences.append(float((found - expected).norm() / expected.norm()))
    assert statistics.median(differences) < ROUNDING
    assert max(differences) < LARGEST


@pytest.mark.parametrize("linear_type", ["Q4_1", "BF16"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_chunks_batches_and_preemption_change_no_logprob(
    tmp_path: Path, linear_type: str, num_threads: int
) -> None:
    path = write(tmp_path, "llama", linear_type)
    sampling = SamplingParams(temperature=0.9, seed=5, logprobs=3)
    whole = run(load(path), sampling)
    again = run(load(path, num_threads=num_threads), sampling, chunk=11, preempt_after=4)
    assert len({token for request in whole for token in request.output_token_ids}) > 10
    for first, second in zip(whole, again, strict=True):
        assert second.output_token_ids == first.output_token_ids
        assert second.logprobs == first.logprobs


def test_drafts_change_no_token(tmp_path: Path) -> None:
    runner = load(write(tmp_path))
    expected = [request.output_token_ids for request in run(runner, SamplingParams(temperature=0))]
    driver = StepDriver(runner, num_blocks=100)
    requests = [
        driver.add(
            prompt,
            SamplingParams(temperature=0),
            12,
            # Right, right, wrong.
            propose=lambda done, tokens=tokens: [*tokens[len(done) : len(done) + 2], 3],
        )
        for prompt, tokens in zip(prompts(), expected, strict=True)
    ]
    driver.run()
    assert [request.output_token_ids for request in requests] == expected
    assert driver.num_steps < 12


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"batch_invariant": True},
        {"quantization": "int8"},
        {"model_impl": "transformers"},
    ],
)
def test_settings_that_ask_for_something_else(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = write(tmp_path)
    assert not is_packed(load(path, "auto", **settings))
    with pytest.raises(ValueError, match="attention_backend cpu is not possible here"):
        load(path, "cpu", **settings)


@pytest.mark.parametrize(("backend", "is_used"), [("auto", True), ("torch", False)])
def test_packed_weights_are_used_unless_pytorch_is_asked_for(
    tmp_path: Path, backend: str, is_used: bool
) -> None:
    assert is_packed(load(write(tmp_path), backend)) is is_used


@pytest.mark.parametrize(
    ("linear_type", "vocabulary_type", "reason"),
    [("Q5_1", "Q8_0", "is Q5_1"), ("Q4_1", "F32", "is F32")],
)
def test_types_that_are_not_packed(
    tmp_path: Path, linear_type: str, vocabulary_type: str, reason: str
) -> None:
    path = write(tmp_path, "llama", linear_type, vocabulary_type)
    assert not is_packed(load(path, "auto"))
    with pytest.raises(ValueError, match=reason):
        load(path, "cpu")


def test_a_tensor_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, whole = "model.layers.0.mlp.up_proj.weight", loaded_model.open_source

    def without_one(config: EngineConfig) -> WeightSource:
        source = whole(config)
        assert isinstance(source, GgufSource)
        del source._tensors[name]
        return source

    monkeypatch.setattr(loaded_model, "open_source", without_one)
    with pytest.raises(WeightsError, match=f"missing: {name}"):
        load(write(tmp_path))


def test_without_kernels_pytorch_runs_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    packed = load(path, "cpu")
    assert is_packed(packed)
    monkeypatch.setattr(packed_build, "best_kernels", lambda: None)
    plain = load(path, "auto")
    assert not is_packed(plain)
    # Other tokens, so no engine goes on with those of the other.
    digests = {runner._require_loaded().info.weights_digest for runner in (packed, plain)}
    assert len(digests) == 2
    with pytest.raises(ValueError, match="no kernels"):
        load(path, "cpu")


def test_weights_that_do_not_fit_say_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBudget, "weight_limit", lambda self: 1000)
    with pytest.raises(FailedPreconditionError, match="are missing; use a file with") as caught:
        load(write(tmp_path))
    # They have neither another type nor another quantization.
    assert "--quantization" not in caught.value.message
    folder = write_folder(tmp_path / "model", torch.bfloat16)
    with pytest.raises(FailedPreconditionError, match="are missing; set --quantization"):
        load(folder)


def test_a_token_that_is_not_in_the_vocabulary_fails_its_step(tmp_path: Path) -> None:
    driver = StepDriver(load(write(tmp_path)), num_blocks=100)
    driver.add([5, 160])
    with pytest.raises(IndexError, match="vocabulary"):
        driver.run()
