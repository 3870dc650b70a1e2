"""What is said when a KV cache does not fit."""

from __future__ import annotations

import pytest

from pagewire.kit.errors import FailedPreconditionError
from worker_svc.memory import check_available, check_fits

MIB = 2**20


def test_what_fits_is_accepted() -> None:
    check_available(2 * MIB, MIB)
    check_fits(4, MIB, 4 * MIB)


def test_too_little_for_a_smallest_cache_says_what_is_missing() -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        check_available(MIB, MIB)
    assert "needs 2.0 MiB and 1.0 MiB are available: 1.0 MiB are missing" in caught.value.message
    assert "--kv-cache-memory-bytes higher" in caught.value.message
    assert caught.value.metadata["missing_bytes"] == str(MIB)


def test_too_many_blocks_say_what_is_missing() -> None:
    with pytest.raises(FailedPreconditionError, match=r"3\.0 MiB are missing; set --kv-cache"):
        check_fits(4, MIB, MIB)
