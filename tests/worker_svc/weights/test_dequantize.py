from __future__ import annotations

import warnings

import numpy as np
import pytest

from pagewire.gguf import GgmlType
from worker_svc.weights.dequantize import dequantize
from worker_svc.weights.source import WeightsError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import gguf

IMPLEMENTED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_weights_equal_those_of_the_gguf_package(name: str) -> None:
    weights = np.random.default_rng(0).normal(0, 0.1, (8, 64)).astype(np.float32)
    stored = gguf.quantize(weights, gguf.GGMLQuantizationType[name])
    expected = gguf.dequantize(stored, gguf.GGMLQuantizationType[name])
    found = dequantize(
        np.ascontiguousarray(stored).view(np.uint8).ravel(), GgmlType[name], "tensor"
    )
    assert found.dtype == np.float32
    assert np.array_equal(found, expected.ravel())


@pytest.mark.parametrize(("name", "halves"), [("Q4_K", (0, 2)), ("Q5_K", (0, 2)), ("Q6_K", (208,))])
def test_random_super_blocks_equal_those_of_the_gguf_package(
    name: str, halves: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    ggml_type = GgmlType[name]
    blocks = random.integers(0, 256, (40, ggml_type.block_bytes), dtype=np.uint8)
    for offset in halves:  # any other bits of a 16-bit float may be an infinity
        scales = random.normal(0, 0.01, (len(blocks), 1)).astype("<f2")
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
    found = dequantize(blocks.ravel(), ggml_type, "tensor")
    assert found.dtype == np.float32
    assert len(np.unique(found)) > 1000
    assert np.array_equal(found, expected.ravel())


def test_another_type_is_refused_by_name() -> None:
    with pytest.raises(WeightsError, match=r"blk\.0\.attn_q\.weight has type Q3_K"):
        dequantize(np.zeros(110, dtype=np.uint8), GgmlType.Q3_K, "blk.0.attn_q.weight")
