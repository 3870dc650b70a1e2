"""Tools as a request names them, and what it wants of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client can run."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of its arguments; empty: it has none."""
    strict: bool = False
    """Whether every call has to keep to the schema."""


class ToolChoice(Enum):
    """Whether the model calls tools."""

    NONE = auto()
    AUTO = auto()
    """As the model likes."""
    REQUIRED = auto()
    """One call at least."""
    NAMED = auto()
    """One call of the one tool that is left."""
