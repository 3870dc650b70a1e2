from __future__ import annotations

from typing import Any

import pytest
import torch

from pagewire.engine_config import ModelConfig
from worker_svc.dtypes import select_cuda_dtype, select_dtype


@pytest.mark.parametrize(("supported", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_where_the_processor_has_it(
    supported: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    assert select_dtype(ModelConfig()) is dtype


def test_auto_is_float32_where_batch_invariance_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert select_dtype(ModelConfig(batch_invariant=True)) is torch.float32


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"dtype": "float16"}, "use bfloat16 or float32"),
        ({"dtype": "bfloat16", "batch_invariant": True}, "use float32"),
    ],
)
def test_what_cannot_be_done_is_refused_with_advice(fields: dict[str, Any], advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        select_dtype(ModelConfig(**fields))


@pytest.mark.parametrize(
    ("dtype", "fields", "chosen"),
    [
        ("auto", {"dtype": "bfloat16"}, torch.bfloat16),
        ("auto", {"torch_dtype": "float16"}, torch.float16),
        ("auto", {"dtype": "float32"}, torch.bfloat16),
        ("auto", {}, torch.bfloat16),
        ("float32", {"dtype": "bfloat16"}, torch.float32),
        ("float16", {"dtype": "bfloat16"}, torch.float16),
    ],
)
def test_on_cuda_auto_is_the_checkpoints_own_half_type(
    dtype: Any, fields: dict[str, str], chosen: torch.dtype
) -> None:
    assert select_cuda_dtype(ModelConfig(dtype=dtype), fields) is chosen


def test_batch_invariance_is_refused_on_cuda() -> None:
    with pytest.raises(ValueError, match="leave --batch-invariant out"):
        select_cuda_dtype(ModelConfig(batch_invariant=True), {})
