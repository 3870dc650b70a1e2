from __future__ import annotations

from typing import Any

import pytest
import torch

from pagewire.engine_config import ModelConfig
from worker_svc.dtypes import select_dtype


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
