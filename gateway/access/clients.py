"""Clients: telling them apart by their keys, and holding each to its limits.

The HTTP guard and the gRPC interceptor ask `Clients.identify`, then run the call inside
`Client.running`. Whoever generates reports tokens with `charge`, which finds the client by itself.
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
from pagewire.kit import context
from pagewire.kit.config import ConfigError
from pagewire.kit.errors import QueueFullError, UnauthenticatedError

ANONYMOUS = "anonymous"
"""The one client that everybody is when there are no keys."""

_BEARER = "bearer "
_CONCURRENCY_RETRY_S = 1.0

_current: ContextVar[Client | None] = ContextVar("gateway_client", default=None)


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
        self._tokens = _bucket(limits.tokens_per_minute, clock)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold a place among the client's requests for the block.

        Raises:
            QueueFullError: A limit is reached; nothing was taken.
        """
        self._check()
        if self._requests is not None:
            self._requests.take(1, self._clock())
        self._num_running += 1
        self._metrics.started(self.name)
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._num_running -= 1
            self._metrics.ended(self.name)

    def charge(self, prompt_tokens: int, generation_tokens: int) -> None:
        """Note the tokens of a request that has ended; they may exceed what the rate allows."""
        self._metrics.used(self.name, prompt_tokens, generation_tokens)
        if self._tokens is not None:
            self._tokens.take(prompt_tokens + generation_tokens, self._clock())

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


def charge(prompt_tokens: int, generation_tokens: int) -> None:
    """Note tokens of the request at hand with its client, if there is one."""
    client = _current.get()
    if client is not None:
        client.charge(prompt_tokens, generation_tokens)


def _secret(authorization: str | None, api_key: str | None) -> str:
    if authorization is None:
        return api_key or ""
    is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
    return authorization[len(_BEARER) :].strip() if is_bearer else ""


def _bucket(per_minute: int | None, clock: Callable[[], float]) -> TokenBucket | None:
    return TokenBucket(per_minute, clock()) if per_minute is not None else None
