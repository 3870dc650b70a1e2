"""The names of the parts that a request's time is made of, and the box that each one is spent in.

Parts named `..._wire` are what is left between two boxes: what the caller waited, without what the
other side says that it took. So no two machines' clocks are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

BOX_OF = {
    "receive": "client",
    "parse": "gateway",
    "tokenize": "tokenizer",
    "tokenize_wire": "tokenizer",
    "dispatch": "gateway",
    "admission": "scheduler",
    "queue": "scheduler",
    "schedule": "scheduler",
    "worker_wire": "worker",
    "worker_queue": "worker",
    "prepare": "worker",
    "forward": "worker",
    "sample": "worker",
    "wait": "scheduler",
    "preempted": "scheduler",
    "recovery": "scheduler",
    "engine_wire": "scheduler",
    "detokenize": "tokenizer",
    "detokenize_wire": "tokenizer",
    "deliver": "gateway",
    "write": "client",
}
"""By part, in the order of a request's way."""

STEP_PARTS = (
    "schedule",
    "worker_wire",
    "worker_queue",
    "prepare",
    "forward",
    "sample",
    "wait",
    "engine_wire",
)
"""What the time of a step is made of; places in the columns of `step_ledger`."""

# Who computed says for certain how long; what happened around it is told by what is left, and what
# was hidden behind the step before comes last.
_MOST_CERTAIN_FIRST = (4, 5, 3, 1, 2, 0)
_WAIT = STEP_PARTS.index("wait")
_ENGINE_WIRE = STEP_PARTS.index("engine_wire")


def fit(parts: Sequence[int], span_ns: int) -> list[int]:
    """Cut a step's parts to a span that they shall fill.

    Args:
        parts: The first six of STEP_PARTS: how long each took, whatever it overlapped with.
        span_ns: What they fill at most.

    Returns:
        All of STEP_PARTS: those that were on the way, the rest of the span as `wait`.
    """
    fitted, left = [0] * len(STEP_PARTS), max(span_ns, 0)
    for place in _MOST_CERTAIN_FIRST:
        fitted[place] = min(parts[place], left)
        left -= fitted[place]
    fitted[_WAIT] = left
    return fitted


def settle(parts: list[int]) -> dict[str, int]:
    """Return a step's parts by name, without those that took no time.

    A frame that was late makes its `engine_wire` longer and the next one's shorter, below zero
    even: what is missing there goes off the longest part.
    """
    debt_ns = min(parts[_ENGINE_WIRE], 0)
    if debt_ns:
        parts[_ENGINE_WIRE] = 0
        longest = max(range(len(parts)), key=parts.__getitem__)
        parts[longest] += debt_ns
    return {name: ns for name, ns in zip(STEP_PARTS, parts, strict=True) if ns > 0}
