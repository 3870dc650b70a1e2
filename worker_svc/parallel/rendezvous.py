"""How the ranks of a new group find each other: a store that rank 0 opens, and its address.

The address goes through the scheduler, in Initialize: host, port and a random key, which keeps
ranks of different generations apart. The store holds what connecting needs and is gone with rank
0's place in the group.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from pagewire.kit.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    ServiceUnavailableError,
)
from worker_svc.device import SHARED_DEVICE
from worker_svc.parallel.layout import RankLayout

CONNECT_TIMEOUT = timedelta(seconds=20)
JOIN_TIMEOUT_S = 240.0
"""How long a rank waits for the others, which may still be loading."""
_POLL_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one generation meet."""

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.key}"

    @classmethod
    def parse(cls, text: str) -> Rendezvous:
        """Read what `str` gives.

        Raises:
            InvalidRequestError: It is something else.
        """
        address, _, key = text.rpartition("/")
        host, _, port = address.rpartition(":")
        if not (host and key and port.isdecimal() and 0 < int(port) < 65536):
            message = "rendezvous must be host:port/key, as rank 0 gave it"
            raise InvalidRequestError(message, reason="INVALID_RENDEZVOUS", field="rendezvous")
        return cls(host, int(port), key)


def open_store(host: str) -> tuple[Store, Rendezvous]:
    """On rank 0: listen on a free port of `host`."""
    server = TCPStore(host, 0, None, True, CONNECT_TIMEOUT, wait_for_workers=False)
    rendezvous = Rendezvous(host, server.port, secrets.token_hex(16))
    return PrefixStore(rendezvous.key, server), rendezvous


def connect_store(rendezvous: Rendezvous) -> Store:
    """On the other ranks: connect to rank 0's store.

    Raises:
        ServiceUnavailableError: It is not there any more.
    """
    try:
        client = TCPStore(rendezvous.host, rendezvous.port, None, False, CONNECT_TIMEOUT)
    except RuntimeError as error:
        raise _not_met("rank 0 cannot be reached") from error
    return PrefixStore(rendezvous.key, client)


def wait_for_ranks(
    store: Store, layout: RankLayout, cancelled: threading.Event, device: str = SHARED_DEVICE
) -> None:
    """Wait until every rank of the replica is at this point.

    Args:
        store: Of the generation.
        layout: This rank's place.
        cancelled: Ends the wait.
        device: This rank's `device_id`.

    Raises:
        ServiceUnavailableError: Some did not come, or nobody waits for this rank any more.
        FailedPreconditionError: Two have the same device.
    """
    names = [f"rank/{rank}" for rank in range(layout.world_size)]
    deadline_s = time.monotonic() + JOIN_TIMEOUT_S
    try:
        store.set(names[layout.rank], device)
        while not store.check(names):
            if cancelled.wait(_POLL_INTERVAL_S):
                raise _not_met("the group was given up")
            if time.monotonic() >= deadline_s:
                raise _not_met(f"some did not come in {JOIN_TIMEOUT_S:.0f} s")
        devices = [store.get(name).decode() for name in names]
    except RuntimeError as error:
        raise _not_met("rank 0 has gone") from error
    own = [device for device in devices if device != SHARED_DEVICE]
    if len(set(own)) < len(own):
        raise FailedPreconditionError(
            "two workers of a replica have the same CUDA device: give each its own by "
            "CUDA_VISIBLE_DEVICES, or set --tensor-parallel-size or --pipeline-parallel-size lower",
            reason="CUDA_DEVICE_SHARED",
        )


def _not_met(reason: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        f"the ranks of the replica did not meet: {reason}", reason="RENDEZVOUS_FAILED"
    )
