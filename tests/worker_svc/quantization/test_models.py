"""Whole models with quantized weights against the same weights in float32."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.engine_config import ModelConfig, Quantization
from pagewire.model_source import resolve_model
from tests.worker_svc import tiny_models
from tests.worker_svc.quantization.attention import logits_of
from tests.worker_svc.tiny_gguf import write_gguf
from worker_svc.models.base import CausalModel
from worker_svc.models.build import BuiltModel, build_model
from worker_svc.models.config import UnsupportedModelError
from worker_svc.quantization.kernels import PackedInt4, PackedInt8Groups, PackedInt8Rows
from worker_svc.weights.load import weights_digest
from worker_svc.weights.source import WeightSource, open_weights

SAME = 5e-5
"""Relative difference of logits where the weights are the same; 7e-6 was seen, 30 layers deep."""
SMOLLM2_INT8 = 0.06
"""The same, for the embedded model with 8 bits made of its dequantized weights; 0.03 was seen."""


def load(source: WeightSource, quantization: Quantization, **fields: Any) -> BuiltModel:
    config = ModelConfig(model="x", quantization=quantization, **fields)
    return build_model(source, config, torch.float32, lambda stage, fraction: None)


def open_path(path: Path) -> WeightSource:
    return open_weights(resolve_model(str(path)))


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def packed_kinds(model: CausalModel) -> set[type]:
    kinds = (PackedInt4, PackedInt8Rows, PackedInt8Groups)
    assert isinstance(model, torch.nn.Module)
    return {type(module) for module in model.modules() if isinstance(module, kinds)}


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    return tiny_models.write_tiny_model(tmp_path / "hf")


PROMPT = [random.Random(0).randrange(3, 160) for _ in range(40)]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("ggml_type", "quantization", "kind"),
    [
        ("Q4_0", "int4", PackedInt4),
        ("Q4_1", "int4", PackedInt4),
        ("Q8_0", "int8", PackedInt8Groups),
    ],
)
def test_blocks_of_a_file_are_kept_and_give_its_logits(
    tmp_path: Path, architecture: str, ggml_type: str, quantization: Quantization, kind: type
) -> None:
    variant = {} if architecture == "llama" else tiny_models.VARIANTS[architecture]
    model = tiny_models.write_tiny_model(tmp_path / "hf", **variant)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model, architecture, linear_type=ggml_type)
    plain, packed = (load(open_path(path), form) for form in ("none", quantization))
    assert packed_kinds(packed.model) == {kind}
    expected = logits_of(plain.model, PROMPT)
    assert difference(logits_of(packed.model, PROMPT), expected) < SAME


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_blocks_of_another_form_are_quantized_anew(
    tmp_path: Path, tiny: Any, quantization: Quantization
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny, "llama", linear_type="Q8_0" if quantization == "int4" else "Q4_0")
    built = load(open_path(path), quantization)
    assert packed_kinds(built.model) == {PackedInt4 if quantization == "int4" else PackedInt8Rows}
    plain = logits_of(load(open_path(path), "none").model, PROMPT)
    assert 0 < difference(logits_of(built.model, PROMPT), plain) < 0.5


def test_floats_are_quantized_while_they_are_loaded(tmp_path: Path, tiny: Any) -> None:
    plain = logits_of(load(open_path(tmp_path / "hf"), "none").model, PROMPT)
    errors = {
        form: difference(logits_of(load(open_path(tmp_path / "hf"), form).model, PROMPT), plain)
        for form in ("int8", "int4")
    }
    assert 0 < errors["int8"] < errors["int4"] < 0.5


def test_the_digest_tells_the_forms_apart(tmp_path: Path, tiny: Any) -> None:
    source = open_path(tmp_path / "hf")
    forms = [load(source, form).form for form in ("none", "int8", "int4")]
    assert len({weights_digest(source, form) for form in forms}) == 3


def test_the_transformers_backend_is_refused(tmp_path: Path, tiny: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="leave --quantization out"):
        load(open_path(tmp_path / "hf"), "int4", model_impl="transformers")


@pytest.mark.timeout(300)
def test_the_embedded_model_keeps_its_four_bits() -> None:
    """Its linear layers are Q4_1: the packed form has the same weights in a third of the memory."""
    source = open_weights(resolve_model("smollm2"))
    plain = load(source, "none").model
    prompt = [random.Random(1).randrange(100, 49_152) for _ in range(24)]
    expected = logits_of(plain, prompt)
    plain_bytes = sum(parameter.nbytes for parameter in plain.parameters())
    del plain
    int4 = load(source, "int4").model
    assert packed_kinds(int4) == {PackedInt4}
    assert sum(parameter.nbytes for parameter in int4.parameters()) < 0.4 * plain_bytes
    found = logits_of(int4, prompt)
    assert difference(found, expected) < SAME
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    del int4
    int8 = load(source, "int8").model
    assert packed_kinds(int8) == {PackedInt8Rows}
    assert difference(logits_of(int8, prompt), expected) < SMOLLM2_INT8
