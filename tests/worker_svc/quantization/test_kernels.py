"""Products with packed weights against products with the weights that they stand for."""

from __future__ import annotations

import pytest
import torch

from worker_svc.quantization import kernels
from worker_svc.quantization.forms import (
    GROUP_SIZE,
    Int4Groups,
    Int8Groups,
    Int8Rows,
    QuantizedForm,
)
from worker_svc.quantization.kernels import PackedInt4, PackedInt8Groups, PackedInt8Rows, pack

RELATIVE_ERROR = 2e-6
"""Of a product's norm; 4e-7 to 8e-7 was seen."""


def random_form(kind: type, rows: int, columns: int, seed: int = 0) -> QuantizedForm:
    generator = torch.Generator().manual_seed(seed)
    groups = (rows, columns // GROUP_SIZE)
    low, high = (0, 16) if kind is Int4Groups else (-127, 128)
    codes = torch.randint(low, high, (rows, columns), generator=generator)
    if kind is Int4Groups:
        offsets = torch.randn(groups, generator=generator)
        scales = torch.rand(groups, generator=generator)
        return Int4Groups(codes.to(torch.uint8), scales, offsets)
    codes = codes.to(torch.int8)
    if kind is Int8Rows:
        return Int8Rows(codes, torch.rand(rows, generator=generator))
    return Int8Groups(codes, torch.rand(groups, generator=generator))


def exact_product(inputs: torch.Tensor, form: QuantizedForm) -> torch.Tensor:
    scales = form.scales if form.scales.ndim == 2 else form.scales[:, None]
    groups = form.codes.double().view(*scales.shape, -1) * scales.double()[..., None]
    if isinstance(form, Int4Groups):
        groups = groups + form.offsets.double()[..., None]
    return inputs.double() @ groups.flatten(1).T


FORMS = (Int4Groups, Int8Rows, Int8Groups)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(("rows", "columns"), [(96, 64), (64, 192), (24, 32), (1, 96), (130, 64)])
def test_products_are_those_of_the_weights(kind: type, rows: int, columns: int) -> None:
    form = random_form(kind, rows, columns)
    inputs = torch.randn(17, columns)
    (packed,) = pack([form])
    expected = exact_product(inputs, form)
    error = (packed(inputs).double() - expected).norm() / expected.norm()
    assert packed(inputs).shape == (17, rows)
    assert float(error) < RELATIVE_ERROR


@pytest.mark.parametrize("kind", [Int4Groups, Int8Rows])
def test_a_rows_product_does_not_depend_on_rows_beside_it(kind: type) -> None:
    form = random_form(kind, 96, 192)
    inputs = torch.randn(130, 192)
    (packed,) = pack([form])
    together = packed(inputs)
    for num_rows in (1, 2, 3, 4, 5, 8, 16, 33, 64, 129):
        assert torch.equal(packed(inputs[:num_rows]), together[:num_rows])


def test_packing_in_pieces_is_packing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    form = random_form(Int4Groups, 200, 64)
    assert isinstance(form, Int4Groups)
    whole = PackedInt4(form).weight
    monkeypatch.setattr(kernels, "_ROWS_PACKED_AT_ONCE", 64)
    assert torch.equal(PackedInt4(form).weight, whole)


def test_neighbours_of_one_form_are_packed_together() -> None:
    kinds = (Int8Groups, Int8Groups, Int8Rows, Int8Groups)
    forms = [random_form(kind, 8, 32, seed) for seed, kind in enumerate(kinds)]
    packed = pack(forms)
    assert [type(part) for part in packed] == [PackedInt8Groups, PackedInt8Rows, PackedInt8Groups]
    assert [part.num_rows for part in packed] == [16, 8, 8]
    inputs = torch.randn(5, 32)
    found = torch.cat([part(inputs) for part in packed], dim=1)
    expected = torch.cat([exact_product(inputs, form) for form in forms], dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)
