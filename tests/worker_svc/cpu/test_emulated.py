"""All variants of the kernels, on a processor that need not have their instructions.

They are emulated: what is found here is what the kernels do wrong, not what a compiler does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pagewire.gguf import GgmlType
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.cpu.emulation import build_emulated
from tests.worker_svc.models.test_packed_llama import K_SIZES, load, write
from tests.worker_svc.step_driver import StepDriver
from worker_svc.cpu.block_forms import FLOATS, KINDS
from worker_svc.cpu.kernels import Kernels, variants
from worker_svc.cpu.packing import MAX_TOKENS, PackedMatrix
from worker_svc.cpu.variant_check import halves_of, problem_of, random_blocks
from worker_svc.models import packed_build, packed_llama
from worker_svc.models.packed_llama import PackedLlama
from worker_svc.quantization.forms import GgmlBlocks

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="emulated instructions are made of those of AVX2",
)

NAMES = ["amx", "avx512", "avx2"]
FEWEST_TILED = 4
COLUMNS = 5 * 256
"""More than two spans of what is unpacked at once, and whole blocks of every type."""
TOKEN_COUNTS = (1, 3, 4, 5, 12, 15, 16, 17, 33, 70, MAX_TOKENS)
"""Few, blocks of tiles that are full and that are not, and last ones with fewer tokens."""
TYPES = pytest.mark.parametrize("ggml_type", list(KINDS), ids=lambda kind: kind.name)

Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_emulated(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def all_kernels(library: Any) -> Iterator[dict[str, Kernels]]:
    found = {kernels.name: kernels for kernels in variants(library)}
    assert list(found) == NAMES, "best first"
    yield found
    assert library.emulated_shaped() == 0, "whoever shapes tiles releases them"


def matrix_of(kernels: Kernels, ggml_type: GgmlType, rows: int, seed: int = 0) -> PackedMatrix:
    blocks = random_blocks(ggml_type, rows, COLUMNS, np.random.default_rng(seed))
    matrix = PackedMatrix(kernels, ggml_type, rows, COLUMNS)
    assert matrix.take(GgmlBlocks(ggml_type, blocks))
    return matrix


def inputs_of(num_tokens: int) -> Floats:
    return np.random.default_rng(num_tokens).standard_normal((num_tokens, COLUMNS), np.float32)


def bits(values: Floats) -> npt.NDArray[np.uint32]:
    return values.view(np.uint32)


@pytest.mark.parametrize("name", NAMES)
def test_each_variant_is_right(all_kernels: dict[str, Kernels], name: str) -> None:
    assert problem_of(all_kernels[name]) is None


@TYPES
@pytest.mark.parametrize("rows", [7, 41, 64])
def test_all_variants_give_the_same_bits(
    all_kernels: dict[str, Kernels], ggml_type: GgmlType, rows: int
) -> None:
    matrices = [matrix_of(all_kernels[name], ggml_type, rows) for name in NAMES]
    bias = np.linspace(-1, 1, rows, dtype=np.float32)
    for num_tokens in TOKEN_COUNTS:
        inputs = inputs_of(num_tokens)
        in_tiles, *others = (bits(matrix.multiply(inputs, bias)) for matrix in matrices)
        for other in others:
            np.testing.assert_array_equal(in_tiles, other)


@TYPES
@pytest.mark.parametrize("name", ["amx", "avx512"])
def test_a_row_has_the_same_bits_whatever_is_beside_it(
    all_kernels: dict[str, Kernels], ggml_type: GgmlType, name: str
) -> None:
    matrix = matrix_of(all_kernels[name], ggml_type, 41)
    inputs = inputs_of(MAX_TOKENS)
    whole = bits(matrix.multiply(inputs))
    for num_tokens in TOKEN_COUNTS:
        found = bits(matrix.multiply(inputs[-num_tokens:]))
        np.testing.assert_array_equal(found, whole[-num_tokens:])


@TYPES
@pytest.mark.parametrize("byte", [0xFF, 0x80, 0x7F, 0x00])
def test_the_largest_codes_have_the_same_bits(
    all_kernels: dict[str, Kernels], ggml_type: GgmlType, byte: int
) -> None:
    blocks = random_blocks(ggml_type, 16, COLUMNS, np.random.default_rng(1))
    place = halves_of(ggml_type)
    blocks[:] = byte
    blocks[:, :, place] = np.ones((place.stop - place.start) // 2, "<f2").view(np.uint8)
    # With a scale of 1 these are the codes: the largest, and those whose bytes have every sign.
    codes = np.array([-32767, 32767, -1, 1, 0, -256, 255, -257], np.float32)
    inputs = np.tile(codes, (17, COLUMNS // len(codes)))
    found = []
    for name in NAMES:
        matrix = PackedMatrix(all_kernels[name], ggml_type, 16, COLUMNS)
        assert matrix.take(GgmlBlocks(ggml_type, blocks))
        found.append(bits(matrix.multiply(inputs)))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@TYPES
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_carried_on(
    all_kernels: dict[str, Kernels], ggml_type: GgmlType, bad: float
) -> None:
    place = 11
    inputs = inputs_of(18)
    inputs[place, 700] = bad
    found = {}
    for name in NAMES:
        matrix = matrix_of(all_kernels[name], ggml_type, 41)
        good = np.delete(matrix.multiply(inputs_of(18)), place, 0)
        found[name] = matrix.multiply(inputs)
        assert not np.isfinite(found[name][place]).any()
        np.testing.assert_array_equal(bits(np.delete(found[name], place, 0)), bits(good))
    # One NaN is like another.
    np.testing.assert_array_equal(found["amx"], found["avx512"])


@TYPES
def test_tiles_are_for_tokens_that_are_not_few(
    all_kernels: dict[str, Kernels], library: Any, ggml_type: GgmlType
) -> None:
    for name in NAMES:
        matrix = matrix_of(all_kernels[name], ggml_type, 41)
        for num_tokens in (1, FEWEST_TILED - 1, FEWEST_TILED, 17):
            before = library.emulated_products()
            matrix.multiply(inputs_of(num_tokens))
            has_tiles = name == "amx" and ggml_type not in FLOATS and num_tokens >= FEWEST_TILED
            assert (library.emulated_products() > before) == has_tiles


@pytest.mark.parametrize(
    ("linear_type", "vocabulary_type"), [("Q4_K", "Q6_K"), ("Q4_0", "Q8_0"), ("Q5_K", "BF16")]
)
def test_a_whole_model_has_the_same_bits(
    all_kernels: dict[str, Kernels],
    library: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    linear_type: str,
    vocabulary_type: str,
) -> None:
    monkeypatch.setattr(packed_llama, "ALONE_PRODUCTS", 0)
    path = write(tmp_path, "llama", linear_type, vocabulary_type, **K_SIZES)
    prompts = [[3 + place * place % 157 for place in range(count)] for count in (2, 21, 140)]
    sampling = SamplingParams(temperature=0.0, logprobs=5)
    found = []
    for name in NAMES:
        before = library.emulated_products()
        monkeypatch.setattr(packed_build, "best_kernels", lambda name=name: all_kernels[name])
        runner = load(path)
        driver = StepDriver(runner, num_blocks=50, chunk=100)
        requests = [driver.add(prompt, sampling, max_tokens=3) for prompt in prompts]
        driver.run()
        model = runner._require_loaded().model
        assert isinstance(model, PackedLlama)
        states = torch.randn(131, 256, generator=torch.Generator().manual_seed(1))
        logits = model.compute_logits(states).numpy().copy()
        token_ids, largest = model.choose_greedily(states)
        assert (library.emulated_products() > before) == (name == "amx")
        found.append(
            (
                [(request.output_token_ids, request.logprobs) for request in requests],
                bits(logits).tolist(),
                token_ids.tolist(),
                bits(np.asarray(largest)).tolist(),
            )
        )
    assert found[0] == found[1] == found[2]
