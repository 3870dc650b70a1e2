"""Waiting for what follows upon the last calls, with a clock of the test's."""

from __future__ import annotations

import math

import pytest

from pagewire.kit.quiet import MAX_WAIT_S, QUIET_S, wait_quiet


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("last_s", [-math.inf, 0.0, 100.0 - QUIET_S])
async def test_where_it_is_quiet_nobody_waits(last_s):
    clock = Clock()
    await wait_quiet(lambda: last_s, clock, clock.sleep)
    assert clock.now_s == 100.0


async def test_the_last_call_is_followed_by_quiet():
    clock = Clock()
    await wait_quiet(lambda: 99.9, clock, clock.sleep)
    assert clock.now_s == pytest.approx(99.9 + QUIET_S)


async def test_a_call_meanwhile_begins_it_again():
    clock = Clock()
    calls_s = [99.9, 100.05]

    def last_s() -> float:
        return max(each for each in calls_s if each <= clock.now_s)

    await wait_quiet(last_s, clock, clock.sleep)
    assert clock.now_s == pytest.approx(100.05 + QUIET_S)


async def test_calls_without_an_end_do_not_hold_it_up():
    clock = Clock()
    await wait_quiet(clock, clock, clock.sleep)
    assert clock.now_s == pytest.approx(100.0 + MAX_WAIT_S)
