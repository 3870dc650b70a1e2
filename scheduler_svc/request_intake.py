"""Requests into the scheduler and out of it from outside: adds, aborts, grammars that fail.

It keeps a request's grammar and the request together: one that ends is no longer compiled for, one
whose grammar is ready may run. It tells clients of ends that they did not ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pagewire.engine_config import StructuredOutputsConfig
from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.logs import get_logger
from scheduler_svc.admission import check_grammar_size
from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.engine_clients import EngineClients
from scheduler_svc.grammar import Grammar, GrammarError
from scheduler_svc.grammar_compiler import GrammarCompiler
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.scheduler import ABORTED, Scheduler
from scheduler_svc.stop import FinishReason, Stop
from scheduler_svc.suspicion import final

SUSPECTED = Stop(FinishReason.ERROR, error_reason="REQUEST_SUSPECTED")
SUSPECTED_MESSAGE = "workers failed again and again on this request"

# The name that these lines have always had.
log = get_logger("scheduler_svc.engine_core")


class RequestIntake:
    """Adds and ends requests of one engine, once it has a scheduler."""

    def __init__(
        self,
        config: StructuredOutputsConfig,
        grammars: GrammarCompiler,
        clients: EngineClients,
        on_change: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            config: Bounds the text of forms.
            grammars: Compiles them.
            clients: Whom to tell.
            on_change: Called when a grammar is ready, or failed.
        """
        self.scheduler: Scheduler | None = None
        """Of the engine; None before its first worker is ready."""
        self._max_grammar_bytes = config.max_grammar_bytes
        self._grammars = grammars
        self._clients = clients
        self._on_change = on_change

    def require_scheduler(self) -> Scheduler:
        """Return the scheduler.

        Raises:
            ServiceUnavailableError: There is none yet.
        """
        if self.scheduler is None:
            raise ServiceUnavailableError("the engine is starting", reason="STARTING")
        return self.scheduler

    def add(self, request: EngineCoreRequest, now_s: float) -> bool:
        """Queue a request; see `EngineCore.add_request`."""
        form = request.sampling_params.structured_outputs
        if form is not None:
            check_grammar_size(form, self._max_grammar_bytes)
        self.require_scheduler().add_request(request, now_s)
        if form is not None:
            self._grammars.start(
                request.request_id,
                form,
                request.output_token_ids,
                partial(self._on_grammar, request),
                partial(self.fail_grammar, request.request_id),
                is_resumed=request.is_resumed,
            )
        return form is None

    def end(
        self, request_ids: Iterable[str] | None, stop: Stop = ABORTED, message: str = ""
    ) -> dict[int, list[FinishedRequest]]:
        """End requests without a word to their clients.

        Args:
            request_ids: None for all; unknown ids are passed over.
            stop: What to call it.
            message: For the client, if it is an error.

        Returns:
            What ended, by client.
        """
        if self.scheduler is None:
            return {}
        ended = self.scheduler.finish_requests(request_ids, stop, message)
        for finished in ended.values():
            for end in finished:
                self._grammars.cancel(end.request_id)
        return ended

    def end_and_tell(
        self, request_ids: Iterable[str] | None, stop: Stop = ABORTED, message: str = ""
    ) -> None:
        """End requests and tell their clients."""
        self._clients.put_finished(self.end(request_ids, stop, message))

    def suspect(self, counts: Mapping[str, int]) -> None:
        """Tell of suspicions, and end the requests that have too many.

        Args:
            counts: How often each request has been suspected by now.
        """
        self._clients.put_suspicions(counts)
        if request_ids := final(counts):
            log.error("requests_suspected", request_ids=request_ids)
            self.end_and_tell(request_ids, SUSPECTED, SUSPECTED_MESSAGE)

    def fail_grammar(self, request_id: str, error: GrammarError) -> None:
        """End a request whose grammar, or a mask of it, could not be made."""
        log.info("grammar_failed", request_id=request_id, reason=error.reason)
        stop = Stop(FinishReason.ERROR, error_reason=error.reason)
        self.end_and_tell([request_id], stop, error.message)
        self._on_change()

    def _on_grammar(self, request: EngineCoreRequest, grammar: Grammar) -> None:
        self.require_scheduler().set_grammar(request.request_id, grammar)
        self._clients.put_admitted(request.client_id, request.request_id)
        self._on_change()
