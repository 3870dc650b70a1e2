"""What a rule of the diagnosis says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

VERDICTS = (
    *("watching", "idle", "healthy", "tokenizer-lost", "engine-lost", "paused"),
    *("cpu-oversubscribed", "slow-client", "tokenizer-bound", "kv-bound", "queue-bound"),
    *("prefill-bound", "scheduler-bound", "worker-bound", "gateway-bound"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict."""

    verdict: str
    """One of `VERDICTS`."""
    box: str
    """The box that limits the others; empty: none does."""
    summary: str
    """One sentence for people, with the figures that it rests on."""
    why: Mapping[str, float] = field(default_factory=dict)
    """Those figures by name."""
    tries: Sequence[str] = ()
    """What may help, the best first; most are flags."""


def counted(number: float, what: str) -> str:
    """Return so many of them, in words for people."""
    rounded = round(number)
    return f"{rounded} {what}" if rounded == 1 else f"{rounded} {what}s"
