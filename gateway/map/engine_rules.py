"""The rules for one replica: what in it limits its requests, if anything does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.map.finding import Finding, counted
from gateway.map.situation import EngineLoad

PERSISTS = 0.75
"""Share of the window in which requests waited, from which on they always do."""
FULL_BATCH = 0.9
"""Of --max-num-seqs."""
FULL_KV = 0.8
"""Share of KV blocks; one more request may not fit into the rest."""
STARVED = 0.3
BUSY = 0.8
MOSTLY = 0.5

EngineRule = Callable[[EngineLoad], Finding | None]


def diagnose_engine(engine: EngineLoad) -> Finding | None:
    """Return what the first rule finds; None: nothing limits it."""
    for rule in ENGINE_RULES:
        finding = rule(engine)
        if finding is not None:
            return finding
    return None


def _kv_bound(engine: EngineLoad) -> Finding | None:
    waits_for_blocks = (
        engine.waiting_share >= PERSISTS
        and not _is_batch_full(engine)
        and engine.kv_usage >= FULL_KV
    )
    if not engine.preemptions_per_s and not waits_for_blocks:
        return None
    lost = (
        f"{engine.preemptions_per_s:.1f} preemptions/s compute tokens again"
        if engine.preemptions_per_s
        else f"{counted(engine.waiting, 'request')} waiting for blocks"
    )
    return Finding(
        "kv-bound",
        engine.box,
        f"the KV cache is too small: up to {engine.kv_usage:.0%} of its blocks are held, {lost}",
        {
            "kv_usage": engine.kv_usage,
            "preemptions_per_s": engine.preemptions_per_s,
            "waiting": engine.waiting,
            "running": engine.running,
        },
        (
            "--gpu-memory-utilization, or on a CPU --kv-cache-memory-bytes, for more blocks",
            "--max-model-len or --max-num-seqs, for fewer at a time",
            _more_replicas(engine),
        ),
    )


def _queue_bound(engine: EngineLoad) -> Finding | None:
    if engine.waiting_share < PERSISTS or not _is_batch_full(engine):
        return None
    return Finding(
        "queue-bound",
        engine.box,
        f"the batch is full with {counted(engine.running, 'request')}, --max-num-seqs is"
        f" {engine.max_num_seqs}, and {engine.waiting:.0f} more wait, while the KV cache has room"
        f" ({engine.kv_usage:.0%} is held)",
        {
            "waiting": engine.waiting,
            "running": engine.running,
            "max_num_seqs": float(engine.max_num_seqs),
            "kv_usage": engine.kv_usage,
        },
        (f"--max-num-seqs {2 * engine.max_num_seqs}", _more_replicas(engine)),
    )


def _prefill_bound(engine: EngineLoad) -> Finding | None:
    if engine.waiting_share < PERSISTS:
        return None
    waiting = counted(engine.waiting, "request")
    return Finding(
        "prefill-bound",
        engine.worker or engine.box,
        f"prompts come faster than they are computed: {waiting} waiting, though the batch"
        f" ({engine.running:.0f} of {engine.max_num_seqs}) and the KV cache have room",
        {"waiting": engine.waiting, "running": engine.running, "busy_share": engine.busy_share},
        (
            _more_replicas(engine),
            "--enable-prefix-caching, where prompts begin alike",
            "--max-num-batched-tokens, for more prompt tokens a step",
        ),
    )


def _scheduler_bound(engine: EngineLoad) -> Finding | None:
    if engine.starved_share < STARVED:
        return None
    return Finding(
        "scheduler-bound",
        engine.box,
        f"the worker waits for steps {engine.starved_share:.0%} of the time though there is work",
        {"starved_share": engine.starved_share, "busy_share": engine.busy_share},
        (
            "--async-scheduling, if it is off",
            "a core of its own for the scheduler, and a short way to its worker",
            _more_replicas(engine),
        ),
    )


def _worker_bound(engine: EngineLoad) -> Finding | None:
    if engine.busy_share < BUSY:
        return None
    if engine.forward_share >= MOSTLY:
        part = f"{engine.forward_share:.0%} of it in the forward pass"
        tries: tuple[str, ...] = (
            "--quantization int8 or int4",
            "--tensor-parallel-size, on more devices",
            _more_replicas(engine),
        )
    else:
        part = "most of it outside of the forward pass"
        tries = (
            "fewer logprobs, penalties and structured outputs, which make sampling dear",
            "--num-threads of the worker",
            _more_replicas(engine),
        )
    return Finding(
        "worker-bound",
        engine.worker or engine.box,
        f"the worker is never idle: it works {engine.busy_share:.0%} of the time, {part}, for"
        f" {counted(engine.running, 'running request')}",
        {
            "busy_share": engine.busy_share,
            "forward_share": engine.forward_share,
            "running": engine.running,
        },
        tries,
    )


def _more_replicas(engine: EngineLoad) -> str:
    number = engine.num_replicas + 1
    return f"--data-parallel-size {number}, or another scheduler with workers in --schedulers"


def _is_batch_full(engine: EngineLoad) -> bool:
    return engine.max_num_seqs > 0 and engine.running >= FULL_BATCH * engine.max_num_seqs


ENGINE_RULES: Sequence[EngineRule] = (
    _kv_bound,
    _queue_bound,
    _prefill_bound,
    _scheduler_bound,
    _worker_bound,
)
