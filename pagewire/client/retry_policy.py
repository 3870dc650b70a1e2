"""Which failed attempts are followed by another, and after which pause.

Reads the retry policies of a gRPC service config and counts the attempts of one call. Waits for
nothing and sends nothing itself: `retrying` and `aio_retrying` do.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from pagewire.kit.errors import from_rpc_error

# As in gRPC's own retries, so that a config means the same everywhere.
_JITTER = 0.2
# What a server may ask for where the call has no deadline.
_MAX_SERVER_DELAY_S = 60.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A retryPolicy of a service config."""

    max_attempts: int
    """The first one included."""
    initial_backoff_s: float
    max_backoff_s: float
    backoff_multiplier: float
    retryable: frozenset[grpc.StatusCode]

    def backoff_s(self, num_failed: int) -> float:
        """Return the mean pause after so many failed attempts."""
        grown = self.initial_backoff_s * self.backoff_multiplier ** (num_failed - 1)
        return min(grown, self.max_backoff_s)


ONE_ATTEMPT = RetryPolicy(1, 0.0, 0.0, 1.0, frozenset())
"""Of methods without a policy, and where retries are switched off."""


def read_policies(service_config: str, service: str) -> dict[str, RetryPolicy]:
    """Return the retry policies of a service's methods, by the methods' names.

    Args:
        service_config: A gRPC service config, as JSON.
        service: The full name of the service.
    """
    return {
        name["method"]: _read_policy(method_config["retryPolicy"])
        for method_config in json.loads(service_config)["methodConfig"]
        if "retryPolicy" in method_config
        for name in method_config["name"]
        if name["service"] == service
    }


class Attempts:
    """The attempts of one call, all of them within the call's time."""

    def __init__(
        self,
        policy: RetryPolicy,
        timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the call's time.

        Args:
            policy: Of the method.
            timeout_s: For all attempts and pauses together; None: no limit.
            clock: Gives seconds.
        """
        self._policy = policy
        self._clock = clock
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self._num_failed = 0

    def timeout_s(self) -> float | None:
        """Return what is left of the call's time; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def pause_s(self, error: grpc.Call | grpc.aio.AioRpcError) -> float | None:
        """Return the seconds to wait before the next attempt; None: there is none.

        There is none after a pause that outlasts the call's time, either: to wait for it would
        only hide what is wrong.

        Args:
            error: The failure of an attempt that gave no message.
        """
        self._num_failed += 1
        code = error.code()
        if self._num_failed >= self._policy.max_attempts or code not in self._policy.retryable:
            return None
        asked_s = from_rpc_error(error).retry_after_s
        if asked_s is None and code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return None  # nothing says that it passes: a message may be too large
        left_s = self.timeout_s()
        if left_s is None:
            left_s = math.inf if asked_s is None else _MAX_SERVER_DELAY_S
        pause_s = self._jittered(asked_s)
        return pause_s if pause_s < left_s else None

    def _jittered(self, asked_s: float | None) -> float:
        """Spread the calls that failed together, but let none come before the server asked."""
        if asked_s is not None:
            return asked_s * random.uniform(1.0, 1.0 + _JITTER)
        backoff_s = self._policy.backoff_s(self._num_failed)
        return backoff_s * random.uniform(1.0 - _JITTER, 1.0 + _JITTER)


def _read_policy(config: dict[str, Any]) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=config["maxAttempts"],
        initial_backoff_s=_seconds(config["initialBackoff"]),
        max_backoff_s=_seconds(config["maxBackoff"]),
        backoff_multiplier=config["backoffMultiplier"],
        retryable=frozenset(grpc.StatusCode[name] for name in config["retryableStatusCodes"]),
    )


def _seconds(duration: str) -> float:
    """Read a protobuf duration in JSON, as `0.2s`."""
    return float(duration.removesuffix("s"))
