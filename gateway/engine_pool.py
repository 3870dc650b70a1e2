"""The schedulers of this gateway: which one a request goes to, and where it goes when one is lost.

The choice is the gateway's own; a sidecar only carries. It knows served models and load as engine
count, nothing of tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.engine_client import EngineClient, EngineInfo, EngineSettings
from gateway.live_request import LiveRequest, TokenSink
from pagewire.kit.errors import NotFoundError, ServiceUnavailableError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What clients may know of a model."""

    created: int
    """Unix seconds at which this gateway came to know it."""
    max_model_len: int
    """In tokens."""


class EnginePool:
    """All engine clients. Used from one event loop; the composition root runs the clients."""

    def __init__(
        self,
        targets: Sequence[str],
        settings: EngineSettings,
        sink: TokenSink,
        on_change: Callable[[], None],
    ) -> None:
        self._on_change = on_change
        self.clients = [
            EngineClient(target, settings, sink, self._changed, self._rehome) for target in targets
        ]
        self.models: dict[str, ServedModel] = {}
        """By served name, in the order in which we came to know them."""

    @property
    def ready(self) -> list[EngineClient]:
        return [client for client in self.clients if client.is_ready]

    def choose(self, model: str, tokenizer_fingerprint: str) -> tuple[EngineClient, EngineInfo]:
        """Return the ready engine with the fewest of our requests for a model ("": the default).

        Args:
            model: A served name; "" is the one that we have known longest.
            tokenizer_fingerprint: Engines of another vocabulary are left out.

        Raises:
            NotFoundError: No engine has ever served that name.
            ServiceUnavailableError: None that serves it is ready.
        """
        name = model or next(iter(self.models), "")
        if self.models and name not in self.models:
            raise NotFoundError(
                f"The model `{model}` does not exist; this server has: {', '.join(self.models)}",
                reason="MODEL_NOT_FOUND",
                field="model",
            )
        candidates = [
            (client, info)
            for client in self.ready
            if (info := client.info) is not None
            and name in info.served_model_names
            and info.tokenizer_fingerprint == tokenizer_fingerprint
        ]
        if not candidates:
            raise ServiceUnavailableError(
                "no engine for this model is ready; try again soon",
                reason="ENGINE_NOT_READY",
                retry_after_s=1.0,
            )
        return min(candidates, key=lambda candidate: candidate[0].num_requests)

    async def close(self) -> None:
        """Take leave of all schedulers."""
        await asyncio.gather(*(client.close() for client in self.clients))

    def _changed(self) -> None:
        for client in self.ready:
            if client.info is not None:
                self._note_models(client.info)
        self._on_change()

    def _note_models(self, info: EngineInfo) -> None:
        for name in info.served_model_names:
            known = self.models.get(name)
            created = known.created if known else int(time.time())
            self.models[name] = ServedModel(created, info.max_model_len)

    def _rehome(self, lost: EngineClient, request: LiveRequest) -> bool:
        """Give the request to another engine that makes the same tokens, if there is one."""
        if lost.info is None:
            return False
        fingerprint = lost.info.engine_fingerprint
        twins = [
            client
            for client in self.ready
            if client is not lost
            and not client.is_recovering
            and client.info
            and client.info.engine_fingerprint == fingerprint
        ]
        if not twins:
            return False
        min(twins, key=lambda client: client.num_requests).add(request)
        return True
