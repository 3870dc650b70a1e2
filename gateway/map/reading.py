"""From histories to the situation that the rules look at."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.map.boxes import GATEWAY_ID, Box, Kind, State
from gateway.map.history import Window
from gateway.map.situation import EngineLoad, ProcessLoad, Situation

_NS_PER_MS = 1e6
_GONE = frozenset({State.LOST, State.RECOVERING})

BoxWindow = tuple[Box, Window]


def read_situation(boxes: list[BoxWindow]) -> Situation:
    """Return the situation.

    Args:
        boxes: Those that are there now, each with its window; the gateway first.
    """
    windows = {box.id: window for box, window in boxes}
    gateway = windows[GATEWAY_ID]
    tokenizer = next(
        (
            each
            for each in boxes
            if each[0].kind is Kind.TOKENIZER and each[0].state is not State.STANDBY
        ),
        None,
    )
    return Situation(
        num_samples=len(gateway),
        live=gateway.mean("live") or 0.0,
        tokenizing=(tokenizer and tokenizer[1].mean("in_flight")) or 0.0,
        blocked=gateway.mean("blocked") or 0.0,
        unread_bytes=gateway.last("unread_bytes") or 0.0,
        tokenizer=tokenizer[0].id if tokenizer else "",
        has_tokenizer=tokenizer is not None and tokenizer[0].state is State.READY,
        tokenizer_busy_share=busy_share(tokenizer[1]) if tokenizer else None,
        engines=list(_engines(boxes)),
        processes=[_process(box, window) for box, window in boxes if window.last("uptime_ns")],
    )


def busy_share(window: Window) -> float | None:
    """Return in which share of the time each of a process's threads worked; None: not known."""
    work, num_threads = window.ratio("work_ns", "uptime_ns"), window.last("work_threads")
    return min(1.0, work / num_threads) if work is not None and num_threads else None


def forward_share(window: Window) -> float | None:
    """Return the forward pass's share of the worker's work, of an engine's window."""
    share = window.ratio("forward_ns", "busy_ns")
    return None if share is None else min(1.0, share)


def starved_share(window: Window) -> float | None:
    """Return in which share of the time the worker lacked steps, of an engine's window."""
    starved_ns = window.rate("starved_ns")
    return None if starved_ns is None else min(1.0, starved_ns / 1e9)


def _engines(boxes: list[BoxWindow]) -> Iterator[EngineLoad]:
    workers: dict[str | None, list[BoxWindow]] = {}
    for box, window in boxes:
        if box.kind is Kind.WORKER:
            workers.setdefault(box.replica, []).append((box, window))
    schedulers = [each for each in boxes if each[0].kind is Kind.SCHEDULER]
    for box, window in schedulers:
        yield _engine(box, window, workers.get(box.replica, []), len(schedulers))


def _engine(box: Box, window: Window, workers: list[BoxWindow], num_replicas: int) -> EngineLoad:
    shares = [(busy_share(each) or 0.0, worker.id) for worker, each in workers]
    busiest, worker = max(shares, default=(0.0, ""))
    return EngineLoad(
        box=box.id,
        worker=worker,
        is_ready=box.state not in _GONE,
        is_paused=box.state is State.PAUSED,
        running=window.mean("running") or 0.0,
        waiting=window.mean("for_room") or 0.0,
        waiting_share=window.share_above("for_room", 0.0),
        max_num_seqs=round(window.last("max_num_seqs") or 0),
        kv_usage=window.peak("kv_usage") or 0.0,
        preemptions_per_s=window.rate("preemptions") or 0.0,
        busy_share=busiest,
        starved_share=starved_share(window) or 0.0,
        forward_share=forward_share(window) or 0.0,
        num_replicas=num_replicas,
    )


def _process(box: Box, window: Window) -> ProcessLoad:
    return ProcessLoad(
        box=box.id,
        machine=box.machine,
        cores=window.ratio("cpu_ns", "uptime_ns") or 0.0,
        waiting_threads=window.ratio("wait_ns", "uptime_ns"),
        lag_mean_ms=(window.mean("lag_mean_ns") or 0.0) / _NS_PER_MS,
        num_cpus=round(window.last("num_cpus") or 1),
    )
