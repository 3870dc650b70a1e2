"""What the rules of the diagnosis look at: a window's figures, plain and few.

Everything here is a mean over the window unless it says otherwise. It is made by `reading`, and by
tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """How one process fares on its machine."""

    box: str
    machine: str = ""
    """Empty: not known, so that it shares cores with nobody that we know of."""
    cores: float = 0.0
    """It ran on so many."""
    waiting_threads: float | None = None
    """So many of its threads were ready to run and had no core; None: the kernel does not tell."""
    lag_mean_ms: float = 0.0
    """Of its event loop."""
    num_cpus: int = 1


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One replica."""

    box: str
    """Of its scheduler."""
    worker: str = ""
    """Box of the worker whose figures these are; empty: none is known."""
    is_ready: bool = True
    is_paused: bool = False
    running: float = 0.0
    waiting: float = 0.0
    """Those that wait for something of their own, such as a grammar, left out."""
    waiting_share: float = 0.0
    """Share of the window in which any waited."""
    max_num_seqs: int = 0
    """0: not known."""
    kv_usage: float = 0.0
    """Its peak: with preemptions it goes up and down."""
    preemptions_per_s: float = 0.0
    busy_share: float = 0.0
    """Of the time, the worker's device thread worked."""
    starved_share: float = 0.0
    """Of the time, the worker had no step queued though there was work for one."""
    forward_share: float = 0.0
    """Of the worker's work, the model's forward pass; the rest is preparing and sampling."""

    num_replicas: int = 1
    """As many of its kind there are, itself included."""

    @property
    def num_requests(self) -> float:
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Situation:
    """All of it."""

    num_samples: int = 0
    live: float = 0.0
    """Clients' requests that the gateway is answering."""
    tokenizing: float = 0.0
    """Calls to the tokenizer under way."""
    blocked: float = 0.0
    """Requests whose client does not take what has been written to it."""
    unread_bytes: float = 0.0
    """Output that waits for clients, at its end."""
    tokenizer: str = ""
    """Box of the tokenizer in use, or last in use; empty: none has been there."""
    has_tokenizer: bool = True
    tokenizer_busy_share: float | None = None
    """Of the time, each of its threads worked; None: it does not tell."""
    engines: Sequence[EngineLoad] = ()
    processes: Sequence[ProcessLoad] = ()
