"""Each rule: what it finds, where it stops to, and which goes before which."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.map.boxes import CLIENTS_ID, GATEWAY_ID
from gateway.map.diagnosis import diagnose
from gateway.map.finding import VERDICTS
from gateway.map.situation import ProcessLoad, Situation
from tests.gateway.map.factories import (
    SCHEDULER,
    TOKENIZER,
    WORKER,
    make_engine,
    make_situation,
)

QUEUED = {"waiting": 9.0, "waiting_share": 1.0}


def hogged(waiting: float, cores: float, machine: str = "m") -> list[ProcessLoad]:
    half = {"cores": cores / 2, "waiting_threads": waiting / 2, "machine": machine}
    return [ProcessLoad(GATEWAY_ID, **half), ProcessLoad(SCHEDULER, **half)]


CASES: dict[str, tuple[Situation, str, str, str]] = {
    "few samples": (make_situation(num_samples=2), "watching", "", ""),
    "no tokenizer": (make_situation(has_tokenizer=False), "tokenizer-lost", TOKENIZER, "log"),
    "no scheduler": (make_situation(engines=()), "engine-lost", GATEWAY_ID, "log"),
    "no workers": (make_situation(make_engine(is_ready=False)), "engine-lost", SCHEDULER, "log"),
    "a pause": (make_situation(make_engine(is_paused=True)), "paused", SCHEDULER, "Resume"),
    "nothing to do": (
        make_situation(make_engine(running=0.0, busy_share=0.0), live=0.0),
        "idle",
        "",
        "",
    ),
    "cores are missing": (
        make_situation(processes=hogged(2.0, 0.5)),
        "cpu-oversubscribed",
        GATEWAY_ID,
        "--num-threads",
    ),
    "clients that do not read": (
        make_situation(blocked=2.0, unread_bytes=4096.0),
        "slow-client",
        CLIENTS_ID,
        "--max-buffered-output-bytes",
    ),
    "prompts to tokenize": (
        make_situation(tokenizing=3.0, tokenizer_busy_share=1.0),
        "tokenizer-bound",
        TOKENIZER,
        "--num-threads",
    ),
    "preemptions": (
        make_situation(make_engine(preemptions_per_s=0.5)),
        "kv-bound",
        SCHEDULER,
        "--gpu-memory-utilization",
    ),
    "no room for one more": (
        make_situation(make_engine(**QUEUED, kv_usage=0.85)),
        "kv-bound",
        SCHEDULER,
        "--kv-cache-memory-bytes",
    ),
    "a full batch": (
        make_situation(make_engine(**QUEUED, running=64.0)),
        "queue-bound",
        SCHEDULER,
        "--max-num-seqs 128",
    ),
    "long prompts": (
        make_situation(make_engine(**QUEUED)),
        "prefill-bound",
        WORKER,
        "--max-num-batched-tokens",
    ),
    "a worker without steps": (
        make_situation(make_engine(starved_share=0.4)),
        "scheduler-bound",
        SCHEDULER,
        "--async-scheduling",
    ),
    "a model that is slow": (
        make_situation(make_engine(busy_share=0.95)),
        "worker-bound",
        WORKER,
        "--quantization",
    ),
    "sampling that is slow": (
        make_situation(make_engine(busy_share=0.95, forward_share=0.2)),
        "worker-bound",
        WORKER,
        "logprobs",
    ),
    "a full event loop": (
        make_situation(processes=[ProcessLoad(GATEWAY_ID, cores=0.98, lag_mean_ms=40.0)]),
        "gateway-bound",
        GATEWAY_ID,
        "more gateways",
    ),
    "work as usual": (make_situation(), "healthy", "", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_each_condition_has_its_verdict_box_and_advice(name: str) -> None:
    situation, verdict, box, tried = CASES[name]
    finding = diagnose(situation)
    assert (finding.verdict, finding.box) == (verdict, box)
    assert tried in " ".join(finding.tries)
    assert bool(finding.tries) == bool(tried)


def test_every_verdict_is_reached() -> None:
    assert {case[1] for case in CASES.values()} == set(VERDICTS)


BELOW: dict[str, Situation] = {
    "threads wait a little": make_situation(processes=hogged(0.9, 0.2)),
    "many wait a little": make_situation(
        processes=[ProcessLoad(f"worker-{n}.0", "m", 0.05, 0.3) for n in range(9)]
    ),
    "threads wait less than they run": make_situation(processes=hogged(3.0, 3.5)),
    "they wait on machines of their own": make_situation(
        processes=[
            *hogged(0.6, 0.1, machine="a"),
            *hogged(0.6, 0.1, machine="b"),
        ]
    ),
    "the kernel does not tell": make_situation(processes=[ProcessLoad(GATEWAY_ID, cores=0.5)]),
    "one client of four is slow": make_situation(blocked=1.0),
    "a call now and then": make_situation(live=1.0, tokenizing=0.5),
    "one request of four is tokenized": make_situation(tokenizing=1.0),
    "a queue that empties": make_situation(make_engine(waiting=3.0, waiting_share=0.5)),
    "a batch that is full, and nobody waits": make_situation(make_engine(running=64.0)),
    "a worker that rests": make_situation(make_engine(busy_share=0.7)),
    "steps that come late now and then": make_situation(make_engine(starved_share=0.2)),
    "a busy gateway whose loop is quick": make_situation(
        processes=[ProcessLoad(GATEWAY_ID, cores=0.98, lag_mean_ms=3.0)]
    ),
    "a busy scheduler that keeps up": make_situation(
        processes=[ProcessLoad(SCHEDULER, cores=0.98, lag_mean_ms=40.0)]
    ),
    "one replica of two is lost": make_situation(
        make_engine(), make_engine(box="scheduler-1", is_ready=False)
    ),
    "one replica of two is paused": make_situation(
        make_engine(), make_engine(box="scheduler-1", is_paused=True, **QUEUED)
    ),
}


@pytest.mark.parametrize("name", BELOW)
def test_below_the_thresholds_all_is_well(name: str) -> None:
    assert diagnose(BELOW[name]).verdict == "healthy"


FULL = make_engine(**QUEUED, running=64.0)
BEFORE: dict[str, tuple[dict[str, Any], str]] = {
    "missing cores slow everything": (
        {"processes": hogged(2.0, 0.5), "blocked": 4.0, "tokenizing": 4.0},
        "cpu-oversubscribed",
    ),
    "output that nobody takes is there already": (
        {"blocked": 4.0, "tokenizing": 4.0},
        "slow-client",
    ),
    "what is not tokenized waits in no queue": ({"tokenizing": 4.0}, "tokenizer-bound"),
    "a full batch goes before a busy worker": ({}, "queue-bound"),
    "where nothing runs, nothing is slow": ({"has_tokenizer": False}, "tokenizer-lost"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_stands_before_the_rest_counts(name: str) -> None:
    changes, verdict = BEFORE[name]
    assert diagnose(make_situation(FULL, **changes)).verdict == verdict


def test_cores_are_not_missing_where_every_worker_works_all_the_time_and_has_its_own() -> None:
    full = make_engine(busy_share=0.99)
    waits = hogged(2.0, 0.5)
    lacking = [*waits, ProcessLoad(WORKER, "m", 0.4, 1.5)]
    fine = [*waits, ProcessLoad(WORKER, "m", 0.9, 0.1)]
    assert diagnose(make_situation(full, processes=lacking)).verdict == "cpu-oversubscribed"
    assert diagnose(make_situation(full, processes=fine)).verdict == "worker-bound"
    rests = make_engine(box="scheduler-1", worker="worker-1.0")
    assert diagnose(make_situation(full, rests, processes=fine)).verdict == "cpu-oversubscribed"


def test_preemptions_go_before_a_full_batch() -> None:
    engine = make_engine(**QUEUED, running=64.0, preemptions_per_s=1.0)
    assert diagnose(make_situation(engine)).verdict == "kv-bound"


def test_the_replica_with_most_requests_is_named() -> None:
    quiet = make_engine(box="scheduler-1", worker="worker-1.0", busy_share=1.0)
    busy = make_engine(box="scheduler-2", **QUEUED, running=64.0, num_replicas=3)
    finding = diagnose(make_situation(make_engine(), quiet, busy))
    assert (finding.verdict, finding.box) == ("queue-bound", "scheduler-2")
    assert finding.tries[-1].startswith("--data-parallel-size 4")


def test_the_sentence_has_the_figures() -> None:
    finding = diagnose(make_situation(FULL))
    assert "full with 64 requests, --max-num-seqs is 64, and 9 more wait" in finding.summary
    assert finding.why == {"waiting": 9.0, "running": 64.0, "max_num_seqs": 64.0, "kv_usage": 0.3}
