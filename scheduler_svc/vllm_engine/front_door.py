"""The server of `VllmEngine`: an address of its own beside the scheduler's.

So a gateway that is not ours reaches this service and nothing else. It listens when the engine is
ready for the first time, not before: `smg` asks once what the engine is and keeps the answer. It
shares the scheduler's metrics; the composition root says when it serves and stops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.logs import get_logger
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.kit.sockets import check_bindable, unix_path
from pagewire.kit.tasks import TaskOwner
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.vllm_engine.servicer import VllmEngineServicer
from scheduler_svc.vllm_engine.tokenizer_bundle import TokenizerBundle
from scheduler_svc.vocabulary_client import VocabularyClient

SERVICE_NAME = "vllm.grpc.engine.VllmEngine"

log = get_logger("scheduler_svc.vllm_engine.front_door")


class VllmFrontDoor:
    """`check`, `set_serving` as the engine is, `stop`."""

    def __init__(
        self,
        core: EngineCore,
        listen: str,
        config: ServerConfig,
        tokenizers: Sequence[str],
        scheduler: ServiceServer,
        allowed_sans: Sequence[str] = (),
    ) -> None:
        """Prepare the server.

        Args:
            core: The engine.
            listen: Address of this service.
            config: The scheduler's server's; limits are the same.
            tokenizers: Where the tokenizer's files and the vocabulary come from.
            scheduler: The scheduler's server.
            allowed_sans: Who may call, with TLS; none: the role smg.

        Raises:
            ConfigError: A certificate cannot be used.
        """
        tls = config.tls.peer("tokenizer")
        self._core = core
        self._is_listening = False
        self._vocabulary = VocabularyClient(tokenizers, tls) if tokenizers else None
        self._tasks = TaskOwner()
        self.servicer = VllmEngineServicer(
            core, TokenizerBundle(tokenizers, tls), lambda: self.server.is_serving
        )
        self.server = ServiceServer(
            replace(
                config,
                listen=listen,
                admin_listen=None,
                metrics_port=0,
                tls=replace(config.tls, allowed_sans=tuple(allowed_sans)),
            ),
            SERVICE_NAME,
            [
                lambda server: vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(  # type: ignore[no-untyped-call]
                    self.servicer, server
                )
            ],
            callers=("smg",),
            registry=scheduler.registry,
            rpc_metrics=scheduler.rpc_metrics,
        )

    def check(self) -> None:
        """Find out early that the address cannot be had.

        Raises:
            FailedPreconditionError: Says why.
        """
        if unix_path(self.server.address) is None:
            check_bindable(self.server.address)

    async def set_serving(self, serving: bool, reason: str = "") -> None:
        """Say whether new requests are welcome; listen when they are for the first time."""
        if serving and not self._is_listening:
            try:
                await self.server.start()
            except FailedPreconditionError as error:
                log.error("vllm_engine_cannot_listen", reason=error.message)
                return
            self._is_listening = True
        await self.server.set_serving(serving, reason)
        is_wanted = self.servicer.vocabulary is None and not self._tasks
        if serving and is_wanted and self._vocabulary is not None:
            self._tasks.spawn(self._fetch_vocabulary(self._vocabulary), name="vllm-vocabulary")

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s` seconds; idempotent."""
        await self.server.stop(grace_s)
        await self._tasks.close()

    async def _fetch_vocabulary(self, client: VocabularyClient) -> None:
        fingerprint = self._core.require_info().facts.model_info.tokenizer_fingerprint
        self.servicer.vocabulary = await client.fetch(fingerprint, lambda: None)
