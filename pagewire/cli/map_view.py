"""Draws the live map as text: a card a box, replicas side by side as far as there is room.

From what `GET /v1/map` answers to lines; it asks nothing and prints nothing. Figures that are not
known are left out.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.cli.map_figures import edge_text, figure_lines, process_text
from pagewire.kit.plain_text import one_line, plain

Box = Mapping[str, Any]

_CARD_WIDTH = 38
_GAP = "  "
_STRONG, _PLAIN = "\x1b[1;33m", "\x1b[0m"
_QUIET = frozenset({"healthy", "idle", "watching"})


@dataclass(frozen=True, slots=True)
class Look:
    """How to draw."""

    width: int
    """Columns."""
    has_colour: bool = False

    @property
    def num_columns(self) -> int:
        """Cards that fit side by side."""
        return max(1, (self.width + len(_GAP)) // (_CARD_WIDTH + len(_GAP)))

    @property
    def card_width(self) -> int:
        return min(_CARD_WIDTH, self.width)

    def strong(self, text: str) -> str:
        return f"{_STRONG}{text}{_PLAIN}" if self.has_colour else text


def draw_map(answer: Mapping[str, Any], url: str, look: Look) -> str:
    """Return the map, a line after the other.

    Args:
        answer: Of `GET /v1/map`.
        url: Where it came from.
        look: How to draw.
    """
    answer = plain(answer)
    boxes: list[Box] = list(answer["boxes"])
    limiting = answer["diagnosis"]["box"]
    edges = {edge["to"]: edge for edge in answer["edges"]}
    at = time.strftime("%H:%M:%S", time.localtime(answer["created"]))
    head = textwrap.wrap(one_line(f"pagewire map  {url}  {at}"), look.width)
    lines = [*head, "", *_diagnosis(answer["diagnosis"], look), ""]
    for row in _rows(boxes):
        columns = [
            [line for box in column for line in _card(box, edges, limiting, look)] for column in row
        ]
        lines += _side_by_side(columns, look)
    return "\n".join(lines)


def _diagnosis(diagnosis: Mapping[str, Any], look: Look) -> Iterator[str]:
    verdict, box = diagnosis["verdict"], diagnosis["box"]
    head = f"{verdict} at {box}" if box else verdict
    for line in textwrap.wrap(f"{head}: {diagnosis['summary']}", look.width):
        yield line if verdict in _QUIET else look.strong(line)
    for number, tried in enumerate(diagnosis["try"]):
        lead = "try  " if number == 0 else "or   "
        yield from textwrap.wrap(lead + tried, look.width, subsequent_indent="     ")


def _rows(boxes: Sequence[Box]) -> Iterator[list[list[Box]]]:
    """Yield rows of columns: gateway and tokenizers, then the replicas with their workers."""
    yield [[box] for box in boxes if box["replica"] is None]
    replicas: dict[str, list[Box]] = {}
    for box in boxes:
        if box["replica"] is not None:
            replicas.setdefault(box["replica"], []).append(box)
    yield list(replicas.values())


def _card(
    box: Box, edges: Mapping[str, Mapping[str, Any]], limiting: str | None, look: Look
) -> Iterator[str]:
    inner = look.card_width - 4
    is_limiting = box["id"] == limiting

    def shown(line: str) -> str:
        return look.strong(line) if is_limiting else line

    edge = edge_text(edges.get(box["id"]))
    yield _fit(f"  │ {edge}" if edge else "", look.card_width)
    mark = "»" if is_limiting else "─"
    state = "" if box["state"] == "ready" else f" {box['state']} "
    title = f"{mark} {box['id']} "[: look.card_width - len(state) - 4]
    fill = "─" * (look.card_width - 3 - len(title) - len(state))
    yield shown(f"┌{title}{fill}{state}─┐")
    for text in [*figure_lines(box), process_text(box["process"])]:
        for line in textwrap.wrap(text, inner):
            yield shown("│") + f" {_fit(line, inner)} " + shown("│")
    yield shown("└" + "─" * (look.card_width - 2) + "┘")


def _side_by_side(columns: Sequence[Sequence[str]], look: Look) -> Iterator[str]:
    for first in range(0, len(columns), look.num_columns):
        row = columns[first : first + look.num_columns]
        height = max(len(column) for column in row)
        for place in range(height):
            cells = [
                column[place] if place < len(column) else " " * look.card_width for column in row
            ]
            yield _GAP.join(cells).rstrip()


def _fit(text: str, width: int) -> str:
    return text[:width].ljust(width)
