"""Which product a weight gets, and that oneDNN's is right and the same whatever is beside a row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from worker_svc.layers.linear import MergedLinear
from worker_svc.layers.products import (
    ProductChoice,
    functional_product,
    mkl_is_slow,
    onednn_product,
)

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no such product"
)
LARGE = (2048, 512)


def weights(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_the_product(num_rows: int, has_bias: bool) -> None:
    weight, rows = weights(*LARGE), weights(num_rows, LARGE[1])
    bias = weights(LARGE[0]) if has_bias else None
    torch.testing.assert_close(
        onednn_product(rows, weight, bias), functional.linear(rows, weight, bias),
        rtol=1e-4, atol=1e-3,
    )  # fmt: skip


def test_a_choice_that_is_taken_keeps_the_bits_of_each_row() -> None:
    weight, rows = weights(*LARGE), weights(300, LARGE[1])
    product = ProductChoice().of(weight)
    whole = product(rows, weight, None)
    for first, count in ((0, 1), (299, 1), (3, 4), (10, 50), (20, 257)):
        assert torch.equal(
            product(rows[first : first + count], weight, None), whole[first:][:count]
        )


def test_large_weights_get_it_others_do_not() -> None:
    choice = ProductChoice(functional_product_of_rows)
    assert choice.of(weights(*LARGE)) is functional_product_of_rows
    assert choice.of(weights(64, 512)) is functional_product
    assert choice.of(weights(*LARGE, dtype=torch.bfloat16)) is functional_product
    assert choice.of(MergedLinear(512, (2048,), bias=False)) is functional_product


def functional_product_of_rows(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """One row after the other."""
    return torch.cat([functional.linear(row, weight, bias) for row in inputs.split(1)])


def test_a_product_whose_rows_depend_on_others_is_left_alone() -> None:
    def mean_of_all(
        inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return functional.linear(inputs + inputs.mean(), weight, bias)

    assert ProductChoice(mean_of_all).of(weights(*LARGE)) is functional_product


def test_each_shape_is_tried_once() -> None:
    num_calls = 0

    def counted(
        inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return functional_product_of_rows(inputs, weight, bias)

    choice = ProductChoice(counted)
    assert choice.of(weights(*LARGE)) is counted
    tried, _ = num_calls, choice.of(weights(*LARGE))
    assert num_calls == tried > 0
    choice.of(weights(*LARGE[::-1]))
    assert num_calls == 2 * tried


@pytest.mark.parametrize(
    ("text", "is_slow"),
    [
        ("processor : 0\nvendor_id\t: AuthenticAMD\n", True),
        ("processor : 0\nvendor_id\t: GenuineIntel\n", False),
        ("processor : 0\nBogoMIPS\t: 50.00\n", False),
        (None, False),
    ],
    ids=["AMD", "Intel", "no vendor", "no file"],
)
def test_mkl_is_slow_where_the_processor_is_not_intels(
    tmp_path: Path, text: str | None, is_slow: bool
) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    assert mkl_is_slow(file) == is_slow
