"""Clients: by their headers, within their limits, in their figures."""

from __future__ import annotations

import contextlib

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.access.client_limits import ClientLimits
from gateway.access.clients import Clients, admitted, charge
from gateway.access.keys import KeyRing, parse_keys
from gateway.access.metrics import ClientMetrics
from gateway.access.readers import ANONYMOUS
from pagewire.kit.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotBegunError,
    PagewireError,
    QueueFullError,
    UnauthenticatedError,
)


class Bench:
    """Clients with a clock that stands still."""

    def __init__(self, keys: list[str] | None = None, **limits: int) -> None:
        self.now_s = 0.0
        self.registry = CollectorRegistry()
        ring = KeyRing(parse_keys(keys or []))
        metrics = ClientMetrics(self.registry)
        self.clients = Clients(ring, ClientLimits(**limits), metrics, lambda: self.now_s)

    def figures(self) -> str:
        return generate_latest(self.registry).decode()


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [("Bearer s1", None), ("bearer  s1 ", None), ("BEARER s1", "wrong"), (None, "s1")],
)
def test_a_key_comes_as_a_bearer_token_or_in_its_own_header(
    authorization: str | None, api_key: str | None
) -> None:
    assert Bench(["a=s1"]).clients.identify(authorization, api_key).name == "a"


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [(None, None), ("", None), ("s1", None), ("Basic s1", "s1"), ("Bearer s2", "s1"), (None, "s")],
)
def test_without_a_key_nobody_is_known(authorization: str | None, api_key: str | None) -> None:
    bench = Bench(["a=s1"])
    with pytest.raises(UnauthenticatedError):
        bench.clients.identify(authorization, api_key)
    assert "pagewire:unauthenticated_total 1.0" in bench.figures()


def test_without_keys_everybody_is_one_client() -> None:
    clients = Bench().clients
    assert clients.identify(None) is clients.identify("Bearer x")
    assert clients.identify(None).name == ANONYMOUS


def test_requests_over_the_rate_are_refused_and_say_when_to_come_again() -> None:
    bench = Bench(["a=s1", "b=s2"], requests_per_minute=2)
    client = bench.clients.identify("Bearer s1")
    for _ in range(2):
        with client.running():
            pass
    with pytest.raises(QueueFullError) as caught, client.running():
        pass
    assert caught.value.reason == "REQUEST_RATE_LIMIT"
    assert caught.value.retry_after_s == pytest.approx(30.0)
    with bench.clients.identify("Bearer s2").running():
        pass
    bench.now_s = 30.0
    with client.running():
        pass
    assert 'pagewire:client_refusals_total{client="a",reason="REQUEST_RATE_LIMIT"} 1.0' in (
        bench.figures()
    )


def test_places_are_given_back_however_a_request_ends() -> None:
    bench = Bench(concurrent_requests=1)
    client = bench.clients.identify(None)
    with contextlib.suppress(KeyError), client.running():
        with pytest.raises(QueueFullError) as caught, client.running():
            pass
        assert caught.value.reason == "CONCURRENCY_LIMIT"
        raise KeyError
    with client.running():
        assert 'pagewire:client_requests_running{client="anonymous"} 1.0' in bench.figures()


def test_tokens_are_charged_to_the_client_at_hand_and_its_next_request_waits() -> None:
    bench = Bench(["a=s1"], tokens_per_minute=60)
    client = bench.clients.identify("Bearer s1")
    with client.running():
        charge(1000, 1000)  # refused by the engine: nothing was done for it
        admitted()
        charge(50, 20)
    charge(1000, 1000)  # outside of a request: nobody's
    with pytest.raises(QueueFullError) as caught, client.running():
        pass
    assert caught.value.reason == "TOKEN_RATE_LIMIT"
    assert caught.value.retry_after_s == pytest.approx(11.0)
    bench.now_s = 11.0
    with client.running():
        pass
    figures = bench.figures()
    assert 'pagewire:client_tokens_total{client="a",kind="prompt"} 50.0' in figures
    assert 'pagewire:client_tokens_total{client="a",kind="generation"} 20.0' in figures


def test_a_refused_request_uses_up_nothing() -> None:
    bench = Bench(concurrent_requests=1, requests_per_minute=2)
    client = bench.clients.identify(None)
    with client.running():
        for _ in range(5):
            with pytest.raises(QueueFullError), client.running():
                pass
    with client.running():
        pass


@pytest.mark.parametrize(
    "refusal",
    [
        QueueFullError("the engine's queue is full"),
        InvalidRequestError("no such grammar"),
        NotBegunError("not ready", reason="NOT_READY"),
    ],
)
def test_what_is_refused_before_it_is_admitted_is_given_back(refusal: PagewireError) -> None:
    bench = Bench(requests_per_minute=2)
    client = bench.clients.identify(None)
    for _ in range(2):
        with pytest.raises(type(refusal)), client.running():
            raise refusal
    for _ in range(2):
        with client.running():
            pass
    with pytest.raises(QueueFullError, match="2 requests per minute"), client.running():
        pass


def test_what_is_refused_all_the_time_is_given_back_only_so_often() -> None:
    bench = Bench(requests_per_minute=5)
    client = bench.clients.identify(None)
    num_run = 0
    with pytest.raises(QueueFullError):
        for _ in range(100):
            with contextlib.suppress(InvalidRequestError), client.running():
                num_run += 1
                raise InvalidRequestError("no such grammar")
    assert num_run == 10


@pytest.mark.parametrize("error", [QueueFullError("SLOW_CLIENT"), ConnectionError()])
def test_what_fails_after_it_was_admitted_counts(error: Exception) -> None:
    client = Bench(requests_per_minute=1).clients.identify(None)
    with pytest.raises(type(error)), client.running():
        admitted()
        raise error
    with pytest.raises(QueueFullError, match="1 requests per minute"), client.running():
        pass


def test_a_deadline_of_the_clients_own_counts() -> None:
    client = Bench(requests_per_minute=1).clients.identify(None)
    with pytest.raises(DeadlineExceededError), client.running():
        raise DeadlineExceededError("the request's deadline passed")
    with pytest.raises(QueueFullError), client.running():
        pass
