"""Items and their events, in OpenAI's order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.responses.output_items import OutputItems

Step = tuple[str, str]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.text(max_size=5)),
        st.tuples(st.just("reasoning"), st.text(max_size=5)),
        st.tuples(st.just("call"), st.sampled_from(["f", "g"])),
        st.tuples(st.just("arguments"), st.text(max_size=5)),
    ),
    max_size=12,
)


def play(taken: Iterable[Step], is_complete: bool = True) -> tuple[OutputItems, list[Any]]:
    items = OutputItems()
    into: dict[str, Callable[[str], Any]] = {
        "text": items.text,
        "reasoning": items.reasoning,
        "call": lambda name: items.call(f"call_{name}", name),
        "arguments": items.arguments,
    }
    events = [event for kind, value in taken for event in into[kind](value)]
    return items, [*events, *items.finish(is_complete)]


def test_text_makes_a_message() -> None:
    _, events = play([("text", "Hel"), ("text", "lo")])
    assert [event["type"] for event in events] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert events[0]["item"]["content"] == []
    assert events[-1]["item"]["content"][0]["text"] == "Hello"
    assert {event["item_id"] for event in events[1:-1]} == {events[0]["item"]["id"]}


def test_an_output_of_nothing_is_an_empty_message() -> None:
    items, _ = play([])
    (item,) = items.objects()
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_what_is_cut_off_is_incomplete_and_what_came_before_is_not() -> None:
    items, _ = play([("reasoning", "hm"), ("text", "so")], is_complete=False)
    assert [item["status"] for item in items.objects()] == ["completed", "incomplete"]


def test_the_turn_has_all_that_was_said() -> None:
    taken = [("reasoning", "hm"), ("text", "so"), ("call", "f"), ("arguments", "{}")]
    turn = play(taken)[0].turn()
    assert (turn.role, turn.content, turn.reasoning_content) == ("assistant", "so", "hm")
    assert json.loads(turn.tool_calls_json)[0]["function"] == {"name": "f", "arguments": "{}"}


@given(steps, st.booleans())
def test_any_output_gives_well_formed_events(taken: list[Step], is_complete: bool) -> None:
    items, events = play(taken, is_complete)
    assert items.objects() == [e["item"] for e in events if e["type"].endswith("item.done")]
    open_item: dict[str, Any] | None = None
    index, deltas = -1, ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            open_item, deltas, index = event["item"], "", index + 1
            assert open_item["status"] == "in_progress"
        assert open_item is not None and event["output_index"] == index
        if kind.endswith(".delta"):
            deltas += event["delta"]
        elif kind.endswith(("text.done", "arguments.done")):
            assert (event["arguments"] if "arguments" in kind else event["text"]) == deltas
        elif kind == "output_item.done":
            assert event["item"]["id"] == open_item["id"]
            open_item = None
    assert open_item is None
