"""Who gets the worker, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagewire.kit.errors import FailedPreconditionError, InvalidRequestError
from worker_svc.lease import LeaseManager


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> LeaseManager:
    return LeaseManager(timeout_s=10.0, clock=clock)


def test_another_scheduler_is_refused_with_the_holders_id(leases: LeaseManager) -> None:
    leases.grant("s1", 1)
    with pytest.raises(FailedPreconditionError) as caught:
        leases.grant("s2", 1)
    assert caught.value.reason == "LEASE_HELD"
    assert caught.value.metadata == {"holder": "s1"}


def test_a_released_lease_is_free(leases: LeaseManager) -> None:
    leases.release(leases.grant("s1", 1))
    assert leases.holder is None
    assert leases.grant("s2", 1).scheduler_id == "s2"


def test_a_lease_out_of_use_is_free_after_the_timeout(leases: LeaseManager, clock: Clock) -> None:
    leases.grant("s1", 1)
    clock.now_s += 9.9
    assert leases.holder is not None
    clock.now_s += 0.1
    assert leases.holder is None
    leases.grant("s2", 1)


def test_a_lease_in_use_outlives_the_timeout(leases: LeaseManager, clock: Clock) -> None:
    lease = leases.grant("s1", 1)
    with leases.in_use(lease):
        clock.now_s += 1000
        with pytest.raises(FailedPreconditionError):
            leases.grant("s2", 1)
    assert leases.holder == lease


def test_a_restarted_scheduler_gets_its_own_lease_back_at_once(leases: LeaseManager) -> None:
    old = leases.grant("s1", 1)
    new = leases.grant("s1", 2)
    assert new.token != old.token
    with pytest.raises(FailedPreconditionError) as caught:
        leases.check(old)
    assert caught.value.reason == "LEASE_LOST"


def test_a_restarted_scheduler_waits_for_the_call_of_its_predecessor(leases: LeaseManager) -> None:
    with leases.in_use(leases.grant("s1", 1)), pytest.raises(FailedPreconditionError):
        leases.grant("s1", 2)


@pytest.mark.parametrize("change", [{"scheduler_id": "s2"}, {"epoch": 2}, {"token": 1}])
def test_a_lease_must_match_in_every_part(leases: LeaseManager, change: dict[str, object]) -> None:
    lease = leases.grant("s1", 1)
    leases.check(lease)
    with pytest.raises(FailedPreconditionError):
        leases.check(replace(lease, **change))  # type: ignore[arg-type]


def test_releasing_an_old_lease_leaves_the_new_one(leases: LeaseManager) -> None:
    old = leases.grant("s1", 1)
    new = leases.grant("s1", 2)
    leases.release(old)
    leases.check(new)


@pytest.mark.parametrize("scheduler_id", ["", "x" * 257])
def test_a_scheduler_id_is_bounded(leases: LeaseManager, scheduler_id: str) -> None:
    with pytest.raises(InvalidRequestError):
        leases.grant(scheduler_id, 1)
