"""Clients: telling them apart by their keys, and holding each to its limits.

The HTTP guard and the gRPC interceptor ask `Clients.identify`, then run the call inside
`Client.running`. Whoever generates says when a request is `admitted`, and reports its tokens with
`charge`; both find the client by themselves. What is refused before it counts for no rate.
Used from one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gateway.access.client_limits import ClientLimits, TokenBucket
from gateway.access.keys import KeyRing
from gateway.access.metrics import ClientMetrics
from gateway.access.readers import ANONYMOUS
from pagewire.kit import context
from pagewire.kit.config import ConfigError
from pagewire.kit.errors import (
    DeadlineExceededError,
    PagewireError,
    QueueFullError,
    UnauthenticatedError,
)

_BEARER = "bearer "
_CONCURRENCY_RETRY_S = 1.0

_current: ContextVar[_Place | None] = ContextVar("gateway_client_place", default=None)


class Client:
    """One client, over all its connections and both APIs."""

    def __init__(
        self,
        name: str,
        limits: ClientLimits,
        metrics: ClientMetrics,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._num_running = 0
        self._requests = _bucket(limits.requests_per_minute, clock)
        # Refused requests take their time too: only so many a minute are given back.
        self._returns = _bucket(limits.requests_per_minute, clock)
        self._tokens = _bucket(limits.tokens_per_minute, clock)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold a place among the client's requests for the block.

        A block that raises a refusal before the request is `admitted` gives back what it took.

        Raises:
            QueueFullError: A limit is reached; nothing was taken.
        """
        self._check()
        if self._requests is not None:
            self._requests.take(1, self._clock())
        self._num_running += 1
        self._metrics.started(self.name)
        place = _Place(self)
        token = _current.set(place)
        try:
            yield
        except PagewireError as exc:
            # A deadline is the client's own: what was done until then was done for it.
            if not place.is_admitted and not isinstance(exc, DeadlineExceededError):
                self._give_back()
            raise
        finally:
            _current.reset(token)
            self._num_running -= 1
            self._metrics.ended(self.name)

    def charge(self, prompt_tokens: int, generation_tokens: int) -> None:
        """Note the tokens of a request that has ended; they may exceed what the rate allows."""
        self._metrics.used(self.name, prompt_tokens, generation_tokens)
        if self._tokens is not None:
            self._tokens.take(prompt_tokens + generation_tokens, self._clock())

    def _give_back(self) -> None:
        now_s = self._clock()
        if self._requests is None or self._returns is None or self._returns.wait_s(now_s) > 0:
            return
        self._returns.take(1, now_s)
        self._requests.give_back(1, now_s)

    def _check(self) -> None:
        most = self._limits.concurrent_requests
        if most is not None and self._num_running >= most:
            message = f"{most} requests of this client are running, which is its limit"
            raise self._refusal(message, "CONCURRENCY_LIMIT", _CONCURRENCY_RETRY_S)
        self._check_rate(self._tokens, "tokens", self._limits.tokens_per_minute)
        self._check_rate(self._requests, "requests", self._limits.requests_per_minute)

    def _check_rate(self, bucket: TokenBucket | None, what: str, limit: int | None) -> None:
        wait_s = bucket.wait_s(self._clock()) if bucket is not None else 0.0
        if wait_s > 0:
            message = f"this client has used up its {limit} {what} per minute"
            raise self._refusal(message, f"{what[:-1].upper()}_RATE_LIMIT", wait_s)

    def _refusal(self, message: str, reason: str, retry_after_s: float) -> QueueFullError:
        self._metrics.refused(self.name, reason)
        text = f"{message}; try again in {max(1, round(retry_after_s))} s"
        return QueueFullError(text, reason=reason, retry_after_s=retry_after_s)


class _Place:
    """Of one call among those of its client."""

    __slots__ = ("client", "is_admitted")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.is_admitted = False


class Clients:
    """All clients that have a key; without keys, everybody is one anonymous client."""

    def __init__(
        self,
        keys: KeyRing,
        limits: ClientLimits,
        metrics: ClientMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._metrics = metrics
        by_name = keys.limits(limits) if keys else {ANONYMOUS: limits}
        self._clients = {name: Client(name, its, metrics, clock) for name, its in by_name.items()}

    def check_names(self, names: Iterable[str], flag: str) -> None:
        """Refuse names of clients that no key has.

        Raises:
            ConfigError: Names the first.
        """
        for name in names:
            if not self._keys or name not in self._clients:
                raise ConfigError(f"{flag} {name}: no key has this name (--api-key NAME=SECRET)")

    def identify(self, authorization: str | None, api_key: str | None = None) -> Client:
        """Return the client that sent these headers, and name it in what is logged from here on.

        Args:
            authorization: Value of `authorization`, which holds `Bearer KEY`.
            api_key: Value of `x-api-key`, the key itself; looked at without the other.

        Raises:
            UnauthenticatedError: It has none of the keys.
        """
        if not self._keys:
            return self._clients[ANONYMOUS]
        name = self._keys.client_of(_secret(authorization, api_key))
        if name is None:
            self._metrics.unauthenticated()
            raise UnauthenticatedError(
                "Incorrect API key provided; send it as `Authorization: Bearer KEY`",
                reason="INVALID_API_KEY",
            )
        context.set_client(name)
        return self._clients[name]


def admitted() -> None:
    """Note that an engine works for the request at hand: from now on it counts, however it ends."""
    place = _current.get()
    if place is not None:
        place.is_admitted = True


def charge(prompt_tokens: int, generation_tokens: int) -> None:
    """Note tokens of the request at hand with its client, if there is one and it was admitted."""
    place = _current.get()
    if place is not None and place.is_admitted:
        place.client.charge(prompt_tokens, generation_tokens)


def _secret(authorization: str | None, api_key: str | None) -> str:
    if authorization is None:
        return api_key or ""
    is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
    return authorization[len(_BEARER) :].strip() if is_bearer else ""


def _bucket(per_minute: int | None, clock: Callable[[], float]) -> TokenBucket | None:
    return TokenBucket(per_minute, clock()) if per_minute is not None else None
