"""The order of a run: every server is up, and rounds ask each in turn."""

from __future__ import annotations

import datetime
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.peer import Peer
from benchmarks.peers.probe import gemm_floor, gemm_rate
from benchmarks.peers.results import Results
from benchmarks.peers.running import Running, running
from benchmarks.peers.suite import Suite
from benchmarks.peers.workloads import Workload
from pagewire.kit.machine import describe_machine

_START_ERRORS = (OSError, RuntimeError)


def measure(
    peers: Sequence[Peer],
    missing: Mapping[str, str],
    suite: Suite,
    rounds: int,
    more_starts: int,
    logs: Path,
    say: Callable[[str], None],
    keep: Callable[[Results], None],
) -> Results:
    """Start all peers and measure them in turns.

    Args:
        peers: Those that are installed.
        missing: Why others are not measured.
        suite: What is asked, of which model.
        rounds: How often.
        more_starts: How often each is started again, for the time that it takes.
        logs: Folder for what the servers say.
        say: Gets a line of progress.
        keep: Gets what there is after each round, which a run that is interrupted leaves; memory
            comes after the last one.
    """
    results = Results(
        machine=describe_machine(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        rounds=0,
        ours=[peer.name for peer in peers if peer.is_ours],
        missing=dict(missing),
    )
    with ExitStack() as stack:
        servers = []
        for peer in peers:
            server = _started(peer, suite, stack, logs, results)
            if server is not None:
                say(f"{peer.name}: first token after {server.first_token_s:.1f} s")
                servers.append(server)
        for number in range(rounds):
            _round(servers, suite.workloads, results, random.Random(number), say)
            results.rounds = number + 1
            keep(results)
        _look_at_memory(servers, suite.workloads, results)
        keep(results)
    for _ in range(more_starts):
        _start_again([server.peer for server in servers], suite, logs, results)
    return results


def _started(
    peer: Peer, suite: Suite, stack: ExitStack, logs: Path, results: Results
) -> Running | None:
    try:
        server = stack.enter_context(running(peer, suite, logs / f"{peer.name}.log"))
    except _START_ERRORS as exc:
        results.missing[peer.name] = f"{exc} (its log: {logs / peer.name}.log)"
        return None
    results.first_token_s[peer.name] = [server.first_token_s]
    return server


def _round(
    servers: Sequence[Running],
    workloads: Sequence[Workload],
    results: Results,
    rng: random.Random,
    say: Callable[[str], None],
) -> None:
    if any(workload.floor_rows for workload in workloads):
        results.floors.append(gemm_floor())
    for workload in workloads:
        order = list(servers)
        rng.shuffle(order)
        for server in order:
            rate = gemm_rate()
            # A prefix cache may hold what an earlier run asked: this one's prompts are its own.
            seed = time.time_ns() % 2**31
            try:
                figure, latencies = server.measure(workload, seed)
            except _START_ERRORS as exc:
                results.missing[f"{server.peer.name}, {workload.name}"] = str(exc)
                results.add(server.peer.name, workload.name, None, rate)
                continue
            results.add(server.peer.name, workload.name, figure, rate)
            if latencies:
                results.add_latencies(server.peer.name, workload.name, latencies)
            say(f"{workload.name}: {server.peer.name}: {figure:.4g} {workload.unit} at {rate:.0f}")


def _look_at_memory(
    servers: Sequence[Running], workloads: Sequence[Workload], results: Results
) -> None:
    """Ask everything once more, untimed: whoever looks takes time from whoever is looked at."""
    for server in servers:
        for workload in workloads:
            try:
                with server.watched():
                    server.measure(workload, time.time_ns() % 2**31)
            except (*_START_ERRORS, subprocess.TimeoutExpired) as exc:
                results.missing[f"{server.peer.name}, memory in {workload.name}"] = str(exc)
        results.max_pss_gb[server.peer.name] = server.max_pss_bytes / 1e9


def _start_again(peers: Sequence[Peer], suite: Suite, logs: Path, results: Results) -> None:
    for peer in peers:
        with running(peer, suite, logs / f"{peer.name}.log") as server:
            results.first_token_s[peer.name].append(server.first_token_s)
