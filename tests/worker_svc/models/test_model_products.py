"""A whole model with the products that are chosen where MKL is slow."""

from __future__ import annotations

import pytest
import torch

from pagewire.engine_config import ModelConfig
from pagewire.model_source import resolve_model
from tests.worker_svc.quantization.attention import logits_of
from worker_svc.layers.linear import MergedLinear
from worker_svc.layers.products import functional_product, onednn_product
from worker_svc.models.build import build_model
from worker_svc.models.llama import LlamaForCausalLM
from worker_svc.weights.source import open_weights

SAME = 5e-5
"""Relative difference of logits: sums in another order, 30 layers deep."""
PROMPT = list(range(1000, 1040))

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no such product"
)


def load(monkeypatch: pytest.MonkeyPatch, is_slow: bool, **fields: bool) -> LlamaForCausalLM:
    monkeypatch.setattr("worker_svc.models.build.mkl_is_slow", lambda: is_slow)
    source = open_weights(resolve_model("smollm2"))
    config = ModelConfig(model="x", **fields)
    model = build_model(source, config, torch.float32, lambda stage, fraction: None).model
    assert isinstance(model, LlamaForCausalLM)
    return model


def products(model: LlamaForCausalLM) -> set[object]:
    linears = [module for module in model.modules() if isinstance(module, MergedLinear)]
    return {model.head_product, *(linear.product for linear in linears)}


def test_numbers_differ_by_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits_of(load(monkeypatch, False), PROMPT)
    model = load(monkeypatch, True)
    assert onednn_product in products(model)
    found = logits_of(model, PROMPT)
    assert float((found - expected).norm() / expected.norm()) < SAME


@pytest.mark.parametrize(
    ("is_slow", "batch_invariant"), [(False, False), (True, True)], ids=["fast", "batch-invariant"]
)
def test_else_they_are_those_of_pytorch(
    monkeypatch: pytest.MonkeyPatch, is_slow: bool, batch_invariant: bool
) -> None:
    model = load(monkeypatch, is_slow, batch_invariant=batch_invariant)
    assert products(model) == {functional_product}
