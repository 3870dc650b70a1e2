"""`pagewire map`: the boxes of a running system with live figures, and which one limits the others.

It asks a gateway over HTTP for the map that it keeps; `map_view` draws it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagewire.cli.gateway_api import DEFAULT_URL, MIN_WIDTH, check_url, get_object, terminal_width
from pagewire.cli.map_view import Look, draw_map
from pagewire.kit.config import load_config
from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.plain_text import one_line

_CLEAR = "\x1b[H\x1b[J"


@dataclass(frozen=True, slots=True)
class MapCommandConfig:
    """Show the boxes of a running system, live, and which one limits the others; Ctrl-C ends it."""

    url: str = DEFAULT_URL
    """The gateway's HTTP API."""
    api_key: str | None = field(default=None, repr=False, metadata={"secret": True})
    """Key to send, if the gateway wants one: SECRET, or NAME=SECRET as the gateway has it."""
    once: bool = False
    """Show it once and end."""
    json: bool = False
    """Print what the gateway answered, as JSON; without --once a line each time."""
    interval_s: float = field(default=1.0, metadata={"flag": "--interval"})
    """Seconds from one look to the next."""
    width: int | None = None
    """Columns to draw in. Default: the terminal's."""
    timeout_s: float = field(default=10.0, metadata={"flag": "--timeout"})
    """Seconds for the gateway's answer."""

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.interval_s < 0.1:
            raise ValueError("interval_s", self.interval_s, "must be at least 0.1")
        if self.width is not None and self.width < MIN_WIDTH:
            raise ValueError("width", self.width, f"must be at least {MIN_WIDTH}")
        if self.timeout_s <= 0:
            raise ValueError("timeout_s", self.timeout_s, "must be positive")


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    config = load_config(MapCommandConfig, prog="pagewire map", argv=arguments)
    first = _ask(config)
    if config.once:
        print(json.dumps(first, indent=2) if config.json else _frame(config, first))
        return 0
    answer: Mapping[str, Any] | str = first
    while True:
        _show(config, answer)
        time.sleep(config.interval_s)  # how often the terminal is drawn anew; a signal ends it
        answer = _ask_again(config)


def _ask(config: MapCommandConfig) -> Mapping[str, Any]:
    return get_object(
        config.url, "/v1/map", api_key=config.api_key, timeout_s=config.timeout_s, what="map"
    )


def _ask_again(config: MapCommandConfig) -> Mapping[str, Any] | str:
    """Return the map, or why there is none just now: a gateway may be started anew."""
    try:
        return _ask(config)
    except ServiceUnavailableError as exc:
        return exc.message


def _show(config: MapCommandConfig, answer: Mapping[str, Any] | str) -> None:
    if config.json:
        text = json.dumps({"error": answer} if isinstance(answer, str) else answer)
    else:
        text = one_line(answer) if isinstance(answer, str) else _frame(config, answer)
    is_live = sys.stdout.isatty() and not config.json
    print(f"{_CLEAR}{text}" if is_live else text, flush=True)


def _frame(config: MapCommandConfig, answer: Mapping[str, Any]) -> str:
    has_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    look = Look(config.width or terminal_width(), has_colour)
    return draw_map(answer, config.url, look)
