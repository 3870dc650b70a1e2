from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from worker_svc.sampler.philox import philox4x32, uniforms

DOCUMENT = Path(__file__).parents[3] / "docs" / "design" / "draws.md"


def column(*values: int) -> npt.NDArray[np.uint64]:
    return np.array([value % 2**64 for value in values], dtype=np.uint64)


def documented_philox_vectors() -> list[tuple[list[int], list[int], list[int]]]:
    pattern = r"\| ((?:[0-9a-f]{8} ?){4})\| ((?:[0-9a-f]{8} ?){2})\| ((?:[0-9a-f]{8} ?){4})\|"
    found = re.findall(pattern, DOCUMENT.read_text())
    return [tuple([int(word, 16) for word in part.split()] for part in row) for row in found]  # type: ignore[misc]


def documented_uniforms() -> list[tuple[int, int, int]]:
    rows = re.findall(r"^\| (-?\d+) \| (\d+) \| (\d{10,}) \|", DOCUMENT.read_text(), re.M)
    return [(int(seed), int(index), int(scaled)) for seed, index, scaled in rows]


def test_philox_gives_the_published_vectors() -> None:
    vectors = documented_philox_vectors()
    assert len(vectors) == 3
    for counter, key, expected in vectors:
        c0, c1, c2, c3 = (column(word) for word in counter)
        words = philox4x32((c0, c1, c2, c3), (column(key[0]), column(key[1])))
        assert [int(word[0]) for word in words] == expected


def test_uniforms_are_those_of_the_document() -> None:
    vectors = documented_uniforms()
    assert len(vectors) == 9
    seeds, indices, scaled = zip(*vectors, strict=True)
    values = uniforms(column(*seeds), column(*indices))
    assert (values * 2.0**53).astype(np.int64).tolist() == list(scaled)


def test_a_draw_is_the_same_alone_and_among_others() -> None:
    seeds, indices = column(*range(50)), column(*range(100, 150))
    together = uniforms(seeds, indices)
    alone = [uniforms(seeds[i : i + 1], indices[i : i + 1])[0] for i in range(50)]
    assert together.tolist() == alone


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_the_extreme_words_stay_inside_the_open_interval(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extreme(counter: object, key: object) -> list[npt.NDArray[np.uint64]]:
        return [column(bits >> 32), column(bits & 0xFFFF_FFFF), column(0), column(0)]

    monkeypatch.setattr("worker_svc.sampler.philox.philox4x32", extreme)
    [value] = uniforms(column(0), column(0)).tolist()
    assert 0.0 < value < 1.0


def test_uniforms_fill_the_interval_evenly() -> None:
    values = uniforms(column(*([17] * 20_000)), column(*range(20_000)))
    counts, _ = np.histogram(values, bins=20, range=(0.0, 1.0))
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert chi_square < 43.8  # 0.1 % quantile of 19 degrees of freedom; the seed is fixed.


def test_neighbouring_seeds_and_indices_are_uncorrelated() -> None:
    indices = column(*range(10_000))
    first = uniforms(np.full_like(indices, 5), indices)
    second = uniforms(np.full_like(indices, 6), indices)
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.03
    assert abs(float(np.corrcoef(first[1:], first[:-1])[0, 1])) < 0.03
