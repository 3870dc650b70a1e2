"""Whose figures a client sees: by the label, whatever the metric."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.access.own_figures import OwnFigures
from gateway.access.readers import ANONYMOUS, Readers, client_at_hand
from pagewire.kit import context


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("requests", "Of clients.", ["client"], registry=registry).labels("ann").inc()
    waits = Histogram("wait", "Of clients.", ["kind", "client"], registry=registry)
    for client in ("ann", "ben"):
        waits.labels("queue", client).observe(1.0)
    Gauge("live", "Of all.", registry=registry).set(3)
    return registry


def test_only_series_of_clients_that_may_not_be_read_are_left_out() -> None:
    registry = _registry()
    shown = generate_latest(OwnFigures(registry, lambda client: client == "ben")).decode()
    assert "ann" not in shown
    assert 'wait_count{client="ben",kind="queue"} 1.0' in shown
    assert "live 3.0" in shown
    assert 'requests_total{client="ann"} 1.0' in generate_latest(registry).decode()


def test_one_reads_its_own_and_a_reader_everybodys() -> None:
    readers = Readers(["root"])
    assert client_at_hand() == ANONYMOUS
    assert readers.may_read(ANONYMOUS) and not readers.may_read("ann")
    context.set_client("ann")
    assert readers.may_read("ann") and not readers.may_read("ben")
    assert not readers.may_read(ANONYMOUS)
    context.set_client("root")
    assert readers.may_read("ann") and readers.may_read("ben")
