"""The input of a kept response, as the API lists it: items with ids, in pages."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.http.fields import invalid

MAX_PAGE = 100
DEFAULT_PAGE = 20

_ID_BYTES = 24
_MAX_DIGITS = 4
# How ids begin, by the type of the item.
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
_PLAIN = ("call_id", "name", "arguments")

Item = dict[str, Any]


def listed_items(value: Any) -> tuple[Item, ...]:
    """Return the items of a body's `input`, which `items.read_input` has accepted."""
    values = [{"role": "user", "content": value}] if isinstance(value, str) else value
    return tuple(_listed(each) for each in values)


def page_of(items: Sequence[Item], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page that a query asks for: the latest items first, unless `order` is asc.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc")
    ordered = items if order == "asc" else items[::-1]
    start = _start(ordered, query.get("after"))
    limit = _limit(query.get("limit", str(DEFAULT_PAGE)))
    page = ordered[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < len(ordered),
    }


def _limit(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    if not is_number or not 1 <= int(text) <= MAX_PAGE:
        raise invalid("limit", f"must be between 1 and {MAX_PAGE}")
    return int(text)


def _start(items: Sequence[Item], after: str | None) -> int:
    if after is None:
        return 0
    places = [place for place, item in enumerate(items) if item["id"] == after]
    if not places:
        raise invalid("after", "must be the id of an item of this list")
    return places[0] + 1


def _listed(item: Mapping[str, Any]) -> Item:
    kind = item.get("type") or "message"
    item_id = f"{_PREFIXES[kind]}_{secrets.token_hex(_ID_BYTES)}"
    listed: Item = {"id": item_id, "type": kind, "status": "completed"}
    if kind == "message":
        role = item["role"]
        part = "output_text" if role == "assistant" else "input_text"
        return listed | {"role": role, "content": _parts(item["content"], part)}
    if kind == "reasoning":
        content = _parts(item.get("content") or [], "reasoning_text")
        return (
            listed
            | {"summary": _parts(item.get("summary") or [], "summary_text")}
            | {"content": content}
        )
    listed |= {name: item[name] for name in _PLAIN if name in item}
    if kind == "function_call_output":
        output = item["output"]
        listed["output"] = output if isinstance(output, str) else _parts(output, "input_text")
    return listed


def _parts(value: str | list[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    texts = [value] if isinstance(value, str) else [part["text"] for part in value]
    more: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
    return [{"type": kind, "text": text, **more} for text in texts]
