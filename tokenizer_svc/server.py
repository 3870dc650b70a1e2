"""The tokenizer service's composition root: builds the parts, joins them, runs them to the end.

Order at the start: ports open (alive), the tokenizer loads in a thread, then ready. At the end: not
ready, streams end when idle or at the drain's deadline, threads end, ports close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pagewire.kit import garbage
from pagewire.kit.logs import configure_logging
from pagewire.kit.process_figures import Work
from pagewire.kit.server import ServiceServer, exit_with_parent, shutdown_signal
from pagewire.kit.spans import SpanInterceptor, open_spans
from pagewire.v1 import tokenizer_pb2_grpc
from tokenizer_svc.chat_template import ChatTemplates
from tokenizer_svc.config import TokenizerServiceConfig
from tokenizer_svc.load import load_model
from tokenizer_svc.metrics import TokenizerCounters
from tokenizer_svc.model_tokenizer import ModelTokenizer
from tokenizer_svc.servicer import TokenizerServicer
from tokenizer_svc.tokenizer_engine import Limits, TokenizerEngine
from tokenizer_svc.work_pool import WorkPool

SERVICE_NAME = "pagewire.v1.TokenizerService"

Loader = Callable[[TokenizerServiceConfig], tuple[ModelTokenizer, ChatTemplates]]


class TokenizerServer:
    """The service with its gRPC server. `start`, then `stop`."""

    def __init__(self, config: TokenizerServiceConfig, load: Loader = load_model) -> None:
        """Prepare the service.

        Args:
            config: The settings.
            load: Finds and loads what the settings name; blocking.
        """
        self._config = config
        self._load = load
        self._pool = WorkPool(config.threads)
        self.servicer = TokenizerServicer()
        self.spans = open_spans("tokenizer", config.server.otlp_traces_endpoint)
        self.server = ServiceServer(
            config.server,
            SERVICE_NAME,
            register=[
                lambda server: tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(
                    self.servicer, server
                )
            ],
            callers=("gateway", "scheduler"),
            interceptors=[SpanInterceptor(self.spans)],
        )
        self._counters = TokenizerCounters()
        self.server.registry.register(self._counters)

        self.servicer.process = self.server.process.latest
        self.server.process.work = lambda: Work.of(self._pool.busy, self._pool.num_jobs)

    async def start(self) -> None:
        """Serve; returns when the tokenizer is loaded.

        Raises:
            FailedPreconditionError: The model cannot be used, or an address cannot be had.
        """
        await self.server.start()
        model, templates = await self._pool.run(self._load, self._config)
        limits = Limits(self._config.max_prompt_bytes, self._config.trust_request_chat_template)
        self.servicer.engine = TokenizerEngine(model, templates, limits, self._pool, self._counters)
        await self.server.set_serving(True)

    async def stop(self) -> None:
        """Drain and stop; idempotent."""
        await self.server.set_serving(False, "draining")
        self.servicer.draining.set()
        await self.server.stop(self._config.server.drain_timeout_s)
        await self.spans.close()
        await asyncio.to_thread(self._pool.close)


async def serve(config: TokenizerServiceConfig) -> int:
    """Run until the first SIGTERM or SIGINT; returns the exit code."""
    configure_logging("tokenizer", config.server.log_level)
    exit_with_parent()
    shutdown = shutdown_signal()
    server = TokenizerServer(config)
    try:
        await server.start()
        garbage.settle()
        await shutdown
    finally:
        await server.stop()
    return 0
