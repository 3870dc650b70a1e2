"""The tokenizers' addresses in turn, with an open channel each; names are looked up while it runs.

Channels stay open when a stream is lost, because closing one cancels the unary calls on it; those
of addresses that have left, or with a certificate that was renewed since, are closed when the next
one is asked for. It does not know whether anybody answers: `tokenizer_client` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeAlias

import grpc

from gateway.routing.membership import Membership, Resolve, follow_members
from pagewire.kit.channels import open_channel
from pagewire.kit.dns import resolve
from pagewire.kit.healthcheck import wait_for_start
from pagewire.kit.tasks import TaskOwner
from pagewire.kit.tls import PeerTls
from pagewire.v1 import tokenizer_pb2_grpc

_TOKENIZER_SERVICE = "pagewire.v1.TokenizerService"

Stub: TypeAlias = "tokenizer_pb2_grpc.TokenizerServiceAsyncStub"


class TokenizerTargets:
    """Use it as an async context manager. Belongs to one event loop."""

    def __init__(
        self, targets: Sequence[str], tls: PeerTls | None = None, resolve: Resolve = resolve
    ) -> None:
        self._membership = Membership(targets)
        self._tls = tls
        self._resolve = resolve
        self._tasks = TaskOwner()
        self._addresses: list[str] = []
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, Stub] = {}
        self._credentials = None if tls is None else tls.credentials
        """Those that channels were opened with."""
        self._last = ""
        self._any = asyncio.Event()

    async def next(self) -> tuple[str, Stub]:
        """Return the address after the last one, round and round, once there is any."""
        await self._any.wait()
        await self._close_old()
        places = {address: place for place, address in enumerate(self._addresses)}
        place = (places.get(self._last, -1) + 1) % len(self._addresses)
        address = self._last = self._addresses[place]
        if address not in self._channels:
            channel = self._channels[address] = open_channel(address, tls=self._tls)
            self._stubs[address] = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        return address, self._stubs[address]

    async def wait_for_start(self, address: str, timeout_s: float) -> None:
        """Wait until the tokenizer of an address that `next` gave begins to serve, or for a time.

        See `pagewire.kit.healthcheck.wait_for_start`.
        """
        await wait_for_start(self._channels[address], _TOKENIZER_SERVICE, timeout_s)

    @property
    def addresses(self) -> Sequence[str]:
        """Who is there."""
        return self._addresses

    async def _close_old(self) -> None:
        credentials = None if self._tls is None else self._tls.current()
        is_renewed = credentials is not self._credentials
        self._credentials = credentials
        for address in [
            each for each in self._channels if is_renewed or each not in self._addresses
        ]:
            del self._stubs[address]
            await self._channels.pop(address).close()

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Note who is there; with nobody left, those from before are kept."""
        if addresses:
            self._addresses = list(addresses)
            self._any.set()

    async def wait_failed(self) -> None:
        """Wait until the lookups end by a bug, and raise what it was; never returns otherwise."""
        await self._tasks.wait_failed()

    async def __aenter__(self) -> Self:
        self.set_addresses(self._membership.addresses)
        if self._membership.names:
            following = follow_members(self._membership, self.set_addresses, resolve=self._resolve)
            self._tasks.spawn(following, name="tokenizer members")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._tasks.close()
        for channel in self._channels.values():
            await channel.close()
