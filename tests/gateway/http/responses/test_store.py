"""What the store keeps and what it forgets."""

from __future__ import annotations

import pytest

from gateway.access.readers import ANONYMOUS
from gateway.generation import ChatMessage
from gateway.http.responses.store import ResponseStore, StoredResponse
from pagewire.kit.errors import NotFoundError


def response(name: str, num_bytes: int = 10, client: str = ANONYMOUS) -> StoredResponse:
    return StoredResponse(name, b"x" * num_bytes, (ChatMessage("user", ""),), (), client)


def kept(store: ResponseStore, names: str) -> str:
    found = ""
    for name in names:
        try:
            found += store.get(name).response_id
        except NotFoundError:
            continue
    return found


def test_the_least_used_go_first_when_there_are_too_many() -> None:
    store = ResponseStore(max_responses=2, max_bytes=1000)
    store.add(response("a"))
    store.add(response("b"))
    store.get("a")
    store.add(response("c"))
    assert kept(store, "abc") == "ac"


def test_bytes_are_bounded_conversations_included() -> None:
    store = ResponseStore(max_responses=100, max_bytes=100)
    store.add(StoredResponse("a", b"x" * 10, (ChatMessage("user", "é" * 20),)))
    store.add(response("b", 50))
    assert kept(store, "ab") == "ab"
    store.add(response("c", 1))
    assert kept(store, "abc") == "bc"
    store.remove("b")
    store.add(response("d", 99))
    assert kept(store, "bcd") == "cd"


def test_one_that_is_larger_than_all_the_room_is_not_kept_and_pushes_none_out() -> None:
    store = ResponseStore(max_responses=10, max_bytes=20)
    store.add(response("a"))
    store.add(response("b", 21))
    assert kept(store, "ab") == "a"


def test_what_is_not_kept_is_not_found_by_name() -> None:
    store = ResponseStore(max_responses=1, max_bytes=100)
    with pytest.raises(NotFoundError) as caught:
        store.get("resp_x", "previous_response_id")
    assert caught.value.field == "previous_response_id"
    with pytest.raises(NotFoundError):
        store.remove("resp_x")


def test_responses_of_others_are_not_found_and_make_room_all_the_same() -> None:
    store = ResponseStore(max_responses=2, max_bytes=100)
    store.add(response("a", client="team-a"))
    with pytest.raises(NotFoundError):
        store.remove("a")
    store.add(response("b"))
    store.add(response("c"))
    assert kept(store, "abc") == "bc"
