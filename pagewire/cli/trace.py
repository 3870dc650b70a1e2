"""`pagewire trace`: where the time of a request went, as a waterfall in the terminal.

It asks a gateway over HTTP for the traces that it keeps; `waterfall` draws them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from pagewire.cli.gateway_api import DEFAULT_URL, MIN_WIDTH, check_url, get_object, terminal_width
from pagewire.cli.waterfall import draw_list, draw_trace
from pagewire.kit.config import ConfigError, OneLineParser, add_arguments, from_namespace


@dataclass(frozen=True, slots=True)
class TraceCommandConfig:
    """Show where the time of a request went, or without an id a list of the last requests."""

    url: str = DEFAULT_URL
    """The gateway's HTTP API."""
    api_key: str | None = field(default=None, repr=False, metadata={"secret": True})
    """Key to send, if the gateway wants one: SECRET, or NAME=SECRET as the gateway has it."""
    slowest: bool = False
    """The slowest requests of the last hour in place of the last ones; the slowest of all is
    drawn."""
    limit: int = 20
    """Most requests in a list."""
    width: int | None = None
    """Columns to draw in. Default: the terminal's."""
    json: bool = False
    """Print what the gateway answered, as JSON."""
    timeout_s: float = field(default=10.0, metadata={"flag": "--timeout"})
    """Seconds for the gateway's answer."""

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.width is not None and self.width < MIN_WIDTH:
            raise ValueError("width", self.width, f"must be at least {MIN_WIDTH}")
        if not 1 <= self.limit <= 1000:
            raise ValueError("limit", self.limit, "must be between 1 and 1000")
        if self.timeout_s <= 0:
            raise ValueError("timeout_s", self.timeout_s, "must be positive")


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = OneLineParser(prog="pagewire trace", description=TraceCommandConfig.__doc__)
    parser.add_argument("id", nargs="?", help="the request's x-request-id; left out: a list")
    add_arguments(parser, TraceCommandConfig)
    namespace = parser.parse_args(list(arguments))
    config = from_namespace(TraceCommandConfig, namespace)
    if namespace.id is not None and config.slowest:
        raise ConfigError("--slowest: goes without an id")
    answer = _ask_one(config, namespace.id) if namespace.id else _ask_list(config)
    if config.json:
        print(json.dumps(answer, indent=2))
        return 0
    width = config.width or terminal_width()
    if namespace.id is not None:
        print(draw_trace(answer, width))
        return 0
    kept = answer["slowest" if config.slowest else "recent"]
    print(draw_list(kept, width))
    if config.slowest and kept:
        print()
        print(draw_trace(_ask_one(config, kept[0]["id"]), width))
    return 0


def _ask_one(config: TraceCommandConfig, request_id: str) -> Mapping[str, Any]:
    return _get(config, f"/v1/requests/{quote(request_id, safe='')}/trace")


def _ask_list(config: TraceCommandConfig) -> Mapping[str, Any]:
    return _get(config, f"/v1/requests?limit={config.limit}")


def _get(config: TraceCommandConfig, path: str) -> Mapping[str, Any]:
    return get_object(
        config.url, path, api_key=config.api_key, timeout_s=config.timeout_s, what="traces"
    )
