"""An event loop's lag is how much too long a sleep takes."""

from __future__ import annotations

import asyncio

import pytest

from pagewire.kit.loop_lag import INTERVAL_S, Lag, LoopLag


async def test_what_a_sleep_takes_too_long_is_lag() -> None:
    now_s, late_s = 100.0, iter([0.0, 0.25, 2.0])

    async def sleep(duration_s: float) -> None:
        nonlocal now_s
        late = next(late_s, None)
        if late is None:
            raise asyncio.CancelledError
        now_s += duration_s + late

    lag = LoopLag()
    with pytest.raises(asyncio.CancelledError):
        await lag.watch(lambda: now_s, sleep)
    (family,) = lag.collect()
    values = {s.name.rpartition("_")[2]: s.value for s in family.samples if "le" not in s.labels}
    assert values == {"count": 3.0, "sum": 2.25}
    buckets = {s.labels["le"]: s.value for s in family.samples if "le" in s.labels}
    assert (buckets["0.001"], buckets["0.3"], buckets["+Inf"]) == (1.0, 2.0, 3.0)
    assert INTERVAL_S > 0
    assert lag.take() == Lag(max_ns=2_000_000_000, mean_ns=750_000_000)
    assert lag.take() == Lag(), "what was told once is not told again"
