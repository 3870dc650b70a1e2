"""Who is there: lists that stay, names whose answers come, go, fail and flap."""

from __future__ import annotations

import asyncio

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
