"""Whether the gateway can serve, and why not: one answer for health checks, HTTP and gRPC.

It looks at the engines and the tokenizer when asked; `changed` is set whenever the answer may have
changed, and the composition root passes it on to the health service.
"""

from __future__ import annotations

import asyncio

from gateway.engine_pool import EnginePool
from gateway.tokenizer_client import TokenizerClient
from pagewire.kit.errors import NotBegunError

RETRY_AFTER_S = 1.0


class Readiness:
    """Ready: a scheduler and a tokenizer are connected, their vocabularies agree, no drain."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.is_draining = False
        self._engines: EnginePool | None = None
        self._tokenizer: TokenizerClient | None = None

    def watch(self, engines: EnginePool, tokenizer: TokenizerClient) -> None:
        """Look at these from now on."""
        self._engines, self._tokenizer = engines, tokenizer

    def start_drain(self) -> None:
        """Be not ready from now on."""
        self.is_draining = True
        self.changed.set()

    def reason(self) -> str:
        """Return why the gateway is not ready; empty: it is."""
        if self.is_draining:
            return "the gateway is draining"
        if self._engines is None or self._tokenizer is None:
            return "the gateway is starting"
        engines = self._engines.ready
        if not engines:
            return "no scheduler is connected"
        tokenizer = self._tokenizer.info
        if tokenizer is None or not self._tokenizer.is_ready:
            return "no tokenizer is connected"
        infos = [client.info for client in engines if client.info is not None]
        if all(info.tokenizer_fingerprint != tokenizer.fingerprint for info in infos):
            return (
                "the tokenizer's vocabulary is not the engine's: fingerprint"
                f" {tokenizer.fingerprint[:12]}, the engine's model has"
                f" {infos[0].tokenizer_fingerprint[:12] or 'none'}; start tokenizer and scheduler"
                " with one --model, and one --tokenizer if the model has none"
            )
        return ""

    def check(self) -> None:
        """Raise unless ready.

        Raises:
            NotBegunError: With the reason.
        """
        if reason := self.reason():
            raise NotBegunError(
                f"not ready: {reason}",
                reason="DRAINING" if self.is_draining else "NOT_READY",
                retry_after_s=RETRY_AFTER_S,
            )
