"""The processes of a stack: one gateway, one tokenizer, and replicas of the engine.

A replica is a scheduler with a worker a rank. It knows names and order, no addresses and no flags.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the stack."""

    name: str
    """In messages, and of its sockets and log file."""
    service: str
    replica: int = 0
    """Of a scheduler or worker."""
    rank: int = 0
    """Of a worker, within its replica."""


def stack_children(num_replicas: int, num_workers: int) -> list[Child]:
    """Return the processes in the order in which they are drained.

    Args:
        num_replicas: Of the engine.
        num_workers: Of each replica, one a rank.
    """
    replicas = range(num_replicas)
    schedulers = [
        Child(_name("scheduler", (replica, num_replicas)), "scheduler", replica)
        for replica in replicas
    ]
    workers = [
        Child(
            _name("worker", (replica, num_replicas), (rank, num_workers)), "worker", replica, rank
        )
        for replica in replicas
        for rank in range(num_workers)
    ]
    return [Child("gateway", "gateway"), *schedulers, *workers, Child("tokenizer", "tokenizer")]


def _name(service: str, *places: tuple[int, int]) -> str:
    """Return the name, with a number for each place that there are several of."""
    return "-".join([service, *(str(index) for index, count in places if count > 1)])
