"""Who is there: lists that stay, names whose answers come, go, fail and flap."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.membership import MAX_ADDRESSES, Membership, follow_members
from pagewire.kit.tasks import cancel_and_wait

NAME = "dns:///replicas:50052"


def test_a_list_stays_as_it_is():
    membership = Membership(["b:1", "a:1", "b:1", "unix:/s"])
    assert membership.names == []
    assert membership.addresses == ["b:1", "a:1", "unix:/s"]


def test_a_name_is_all_addresses_behind_it_and_none_before_the_first_answer():
    membership = Membership(["a:1", NAME])
    assert membership.addresses == ["a:1"]
    membership.take(NAME, ["b:1", "a:1", "c:1"])
    assert membership.addresses == ["a:1", "b:1", "c:1"]


def test_an_address_leaves_after_two_answers_without_it():
    membership = Membership([NAME])
    membership.take(NAME, ["a:1", "b:1"])
    membership.take(NAME, ["b:1"])
    assert set(membership.addresses) == {"a:1", "b:1"}
    membership.take(NAME, ["a:1", "b:1"])
    membership.take(NAME, ["b:1"])
    assert set(membership.addresses) == {"a:1", "b:1"}
    membership.take(NAME, ["b:1"])
    assert membership.addresses == ["b:1"]


@given(st.lists(st.sets(st.sampled_from("abcdef")), min_size=2))
def test_it_has_what_the_last_two_answers_have(answers):
    membership = Membership([NAME])
    for answer in answers:
        membership.take(NAME, sorted(answer))
    assert set(membership.addresses) == answers[-1] | answers[-2]


def test_a_name_with_endless_answers_is_cut():
    membership = Membership([NAME])
    membership.take(NAME, [f"h{i}:1" for i in range(MAX_ADDRESSES + 5)])
    assert len(membership.addresses) == MAX_ADDRESSES


async def test_names_are_asked_again_and_a_failure_keeps_what_was_known():
    answers = iter([["a:1"], OSError("no such host"), ["a:1", "b:1"]])
    seen = asyncio.Queue()

    async def resolve(name):
        assert name == NAME
        answer = next(answers, None)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, OSError):
            raise answer
        return answer

    task = asyncio.create_task(
        follow_members(Membership([NAME]), seen.put_nowait, resolve=resolve, interval_s=0)
    )
    assert [await seen.get() for _ in range(3)] == [["a:1"], ["a:1"], ["a:1", "b:1"]]
    await cancel_and_wait(task)


async def test_a_slow_name_holds_up_no_other():
    slow, rounds = asyncio.Event(), asyncio.Queue()
    membership = Membership(["dns:///slow:1", "dns:///quick:1", "l:1"])

    async def resolve(name):
        if "slow" in name:
            await slow.wait()
            return ["s:1"]
        return ["q:1"]

    task = asyncio.create_task(
        follow_members(membership, rounds.put_nowait, resolve=resolve, interval_s=0)
    )
    assert [await rounds.get() for _ in range(3)] == [["q:1", "l:1"]] * 3
    slow.set()
    while "s:1" not in await rounds.get():
        pass
    await cancel_and_wait(task)


async def test_without_names_the_list_is_told_again_and_again():
    rounds = asyncio.Queue()
    task = asyncio.create_task(follow_members(Membership(["l:1"]), rounds.put_nowait, interval_s=0))
    assert [await rounds.get() for _ in range(2)] == [["l:1"]] * 2
    await cancel_and_wait(task)


async def test_a_listener_that_fails_ends_it():
    def fail(addresses):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await follow_members(Membership(["l:1"]), fail)
