from __future__ import annotations

import pytest

from worker_svc.graphs.sizes import GraphSize, GraphSizes, row_counts, table_widths


def test_row_counts_are_vllms_up_to_the_most_requests() -> None:
    assert row_counts(1) == (1,)
    assert row_counts(3) == (1, 2, 3)
    assert row_counts(32) == (1, 2, 4, 8, 16, 24, 32)
    assert row_counts(100) == (1, 2, 4, *range(8, 97, 8), 100)
    assert row_counts(1000) == (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
    assert len(row_counts(1000)) == 51


@pytest.mark.parametrize(
    ("max_model_len", "block_size", "widths"),
    [
        (100, 16, (32,)),
        (512, 16, (32,)),
        (513, 16, (32, 64)),
        (2048, 16, (32, 128)),
        (8192, 16, (32, 128, 512)),
        (5000, 64, (8, 32, 128)),
        (131_072, 16, (32, 128, 512, 2048, 8192)),
    ],
)
def test_tables_hold_the_longest_sequence_in_whole_splits(
    max_model_len: int, block_size: int, widths: tuple[int, ...]
) -> None:
    assert table_widths(max_model_len, block_size) == widths


def test_a_step_takes_the_smallest_size_that_holds_it() -> None:
    sizes = GraphSizes.of(max_num_seqs=10, max_model_len=2048, block_size=16)
    assert sizes.fitting(1, 1) == GraphSize(1, 32)
    assert sizes.fitting(3, 32) == GraphSize(4, 32)
    assert sizes.fitting(4, 33) == GraphSize(4, 128)
    assert sizes.fitting(9, 128) == GraphSize(10, 128) == sizes.largest
    assert sizes.fitting(11, 1) is None
    assert sizes.fitting(1, 129) is None


def test_the_largest_is_recorded_first_and_each_once() -> None:
    sizes = GraphSizes.of(max_num_seqs=4, max_model_len=2048, block_size=16)
    falling = sizes.falling()
    assert falling[0] == sizes.largest
    assert len(falling) == len(set(falling)) == len(sizes) == 6
