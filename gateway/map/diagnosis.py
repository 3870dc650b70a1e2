"""Which box limits the others, why, and what to try: written rules, in this order.

A rule looks at a window's figures and says what it found, or nothing; the first finding counts. The
thresholds and their reasons are in docs/map.md, which names each of them. Pure: no clock, no parts
of the gateway.

The idea behind most of them: requests stand in front of what limits them. So it matters where they
are — being tokenized, waiting in a scheduler, on a worker, or written to a client — before it
matters how busy anything is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.map.boxes import CLIENTS_ID, GATEWAY_ID
from gateway.map.engine_rules import BUSY, diagnose_engine
from gateway.map.finding import Finding, counted
from gateway.map.situation import ProcessLoad, Situation

MIN_SAMPLES = 3
"""Fewer say nothing."""
IDLE_BELOW = 0.05
"""Requests, on average, below which there was nothing to do."""
MIN_WAITING_THREADS = 0.5
MIN_SHARE_STANDING = 0.5
"""Of all requests, those that stand at one box when it limits them."""
MIN_TOKENIZING = 0.9
FULL_CORE = 0.9
MIN_LOOP_LAG_MS = 20.0

Rule = Callable[[Situation], Finding | None]


def diagnose(situation: Situation) -> Finding:
    """Return what the first rule finds that finds anything."""
    for rule in RULES:
        finding = rule(situation)
        if finding is not None:
            return finding
    return _healthy(situation)


def _watching(situation: Situation) -> Finding | None:
    if situation.num_samples >= MIN_SAMPLES:
        return None
    return Finding("watching", "", "the figures of the first seconds are being collected")


def _tokenizer_lost(situation: Situation) -> Finding | None:
    if situation.has_tokenizer:
        return None
    return Finding(
        "tokenizer-lost",
        situation.tokenizer or GATEWAY_ID,
        "no tokenizer is connected: new requests are refused, and text of running ones waits",
        tries=("see the tokenizer's log and start it again", "--tokenizers with a second address"),
    )


def _engine_lost(situation: Situation) -> Finding | None:
    lost = [engine for engine in situation.engines if not engine.is_ready]
    if situation.engines and len(lost) < len(situation.engines):
        return None  # the others go on
    box = lost[0].box if lost else GATEWAY_ID
    return Finding(
        "engine-lost",
        box,
        "no scheduler with its workers is connected: requests wait, and new ones may be refused",
        {"schedulers": float(len(situation.engines))},
        (
            "see the logs of scheduler and worker, and start again what has ended",
            "--workers with a spare, as a hot standby",
        ),
    )


def _paused(situation: Situation) -> Finding | None:
    ready = [engine for engine in situation.engines if engine.is_ready]
    if not ready or not all(engine.is_paused for engine in ready):
        return None
    waiting = sum(engine.num_requests for engine in ready)
    return Finding(
        "paused",
        ready[0].box,
        f"every engine is paused or asleep: {counted(waiting, 'request')} wait until it goes on",
        {"requests": waiting},
        ("EngineAdminService.Resume, or WakeUp after a sleep",),
    )


def _idle(situation: Situation) -> Finding | None:
    at_engines = sum(engine.num_requests for engine in situation.engines)
    if max(situation.live, at_engines, situation.tokenizing) >= IDLE_BELOW:
        return None
    return Finding("idle", "", "there is nothing to do")


def _cpu_oversubscribed(situation: Situation) -> Finding | None:
    machines: dict[str, list[ProcessLoad]] = {}
    for process in situation.processes:
        if process.waiting_threads is not None:
            machines.setdefault(process.machine or process.box, []).append(process)
    found = [loads for loads in machines.values() if _lacks_cores(loads)]
    if not found or _have_all_workers_enough(situation):
        return None
    loads = max(found, key=_waiting_threads)
    waiting, cores = _waiting_threads(loads), sum(each.cores for each in loads)
    worst = max(loads, key=lambda each: each.waiting_threads or 0.0)
    return Finding(
        "cpu-oversubscribed",
        worst.box,
        f"cores are missing: on average {waiting:.1f} of our threads were ready and had none, while"
        f" {cores:.1f} ran, so everything takes {1 + waiting / max(cores, 0.01):.1f} times as long",
        {"waiting_threads": waiting, "cores": cores, "num_cpus": float(worst.num_cpus)},
        (
            "fewer other programs on this machine, or more cores for the container",
            "--num-threads of worker and tokenizer: not more than there are cores",
            "services on machines of their own",
        ),
    )


def _have_all_workers_enough(situation: Situation) -> bool:
    """Whether every worker works all the time and has the cores to: more of them would not help."""
    waiting = {each.box: each.waiting_threads or 0.0 for each in situation.processes}
    ready = [engine for engine in situation.engines if engine.is_ready]
    return bool(ready) and all(
        engine.busy_share >= BUSY and waiting.get(engine.worker, 0.0) < MIN_WAITING_THREADS
        for engine in ready
    )


def _lacks_cores(loads: Sequence[ProcessLoad]) -> bool:
    """Whether one of them stands in the run queue for long, and all together wait more than run."""
    worst = max(each.waiting_threads or 0.0 for each in loads)
    cores = sum(each.cores for each in loads)
    return worst >= MIN_WAITING_THREADS and _waiting_threads(loads) >= cores


def _waiting_threads(loads: Sequence[ProcessLoad]) -> float:
    return sum(each.waiting_threads or 0.0 for each in loads)


def _slow_client(situation: Situation) -> Finding | None:
    blocked, live = situation.blocked, situation.live
    if blocked < MIN_SHARE_STANDING * max(live, 1.0):
        return None
    answers, kept_kib = counted(blocked, "answer"), situation.unread_bytes / 1024
    return Finding(
        "slow-client",
        CLIENTS_ID,
        f"clients do not read: {answers} of {live:.0f} wait for their client, not for us;"
        f" {kept_kib:.0f} KiB of output are merged and kept for them",
        {"blocked": blocked, "live": live, "unread_bytes": situation.unread_bytes},
        (
            "look at the client, its network, and proxies that buffer",
            "--max-buffered-output-bytes and --send-timeout bound what it may cost",
        ),
    )


def _tokenizer_bound(situation: Situation) -> Finding | None:
    tokenizing, live = situation.tokenizing, situation.live
    if tokenizing < max(MIN_TOKENIZING, MIN_SHARE_STANDING * live):
        return None
    busy = situation.tokenizer_busy_share
    why: dict[str, float] = {"tokenizing": tokenizing, "live": live}
    if busy is not None:
        why["tokenizer_busy_share"] = busy
    work = "" if busy is None else f"; its threads work {busy:.0%} of the time"
    return Finding(
        "tokenizer-bound",
        situation.tokenizer,
        f"requests stand at the tokenizer: {counted(tokenizing, 'call')} under way, for"
        f" {counted(live, 'request')}{work}",
        why,
        (
            "--num-threads of the tokenizer, if its machine has free cores",
            "more gateways, each with a tokenizer of its own in --tokenizers",
            "shorter prompts: --max-prompt-bytes bounds them",
        ),
    )


def _engine_bound(situation: Situation) -> Finding | None:
    """The replica at which most requests stand, among those that something limits."""
    found = [
        (engine.num_requests, finding)
        for engine in situation.engines
        if engine.is_ready
        and not engine.is_paused
        and (finding := diagnose_engine(engine)) is not None
    ]
    return max(found, key=lambda each: each[0])[1] if found else None


def _gateway_bound(situation: Situation) -> Finding | None:
    for process in situation.processes:
        if process.box != GATEWAY_ID:
            continue
        if process.cores >= FULL_CORE and process.lag_mean_ms >= MIN_LOOP_LAG_MS:
            return Finding(
                "gateway-bound",
                GATEWAY_ID,
                f"the gateway's event loop is full: {process.cores:.1f} cores, and it comes"
                f" {process.lag_mean_ms:.0f} ms late",
                {"cores": process.cores, "loop_lag_mean_ms": process.lag_mean_ms},
                ("more gateways, behind one address",),
            )
    return None


def _healthy(situation: Situation) -> Finding:
    busy = max((engine.busy_share for engine in situation.engines), default=0.0)
    under_way = counted(situation.live, "request")
    return Finding(
        "healthy",
        "",
        f"nothing is at its limit: {under_way} under way, the busiest worker works {busy:.0%} of"
        " the time",
        {"live": situation.live, "worker_busy_share": busy},
    )


RULES: Sequence[Rule] = (
    _watching,
    _tokenizer_lost,
    _engine_lost,
    _paused,
    _idle,
    _cpu_oversubscribed,
    _slow_client,
    _tokenizer_bound,
    _engine_bound,
    _gateway_bound,
)
