"""The bound of nesting: exact, in objects and arrays, and not mistaken by brackets side by side."""

from __future__ import annotations

import json

import pytest

from pagewire.kit.json_depth import MAX_JSON_DEPTH, is_too_deep


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_the_bound_is_exact(opened: str, closed: str) -> None:
    num_levels = opened.count("[") + opened.count("{")
    most = MAX_JSON_DEPTH // num_levels
    for count, is_too_many in ((most, False), (most + 1, True)):
        text = f"{opened * count}1{closed * count}"
        assert is_too_deep(text, json.loads(text)) is is_too_many


def test_many_brackets_side_by_side_or_in_strings_are_not_deep() -> None:
    for value in ([[]] * 1000, [{}] * 1000, "[" * 1000, {"a": "{" * 1000, "b": [1] * 1000}, 1):
        assert not is_too_deep(json.dumps(value), value)
