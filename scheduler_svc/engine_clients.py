"""The engine's clients: who gets what of a step, and who hears that the engine changes.

Clients are `OutputSink`s: gateways' streams and direct callers. It knows their ids and nothing of
scheduling. A sink may go away while others are told, so whoever tells all goes by a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from pagewire.kit.errors import PagewireError, ServiceUnavailableError
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.engine_state import OutputSink
from scheduler_svc.step_figures import StepTimings


class EngineClients:
    """The clients of one engine; what is for one that has gone is dropped."""

    def __init__(self) -> None:
        self._sinks: dict[int, OutputSink] = {}
        self._ids = count(1)

    def add(self, sink: OutputSink) -> int:
        """Add a client; returns the id that its requests carry."""
        client_id = next(self._ids)
        self._sinks[client_id] = sink
        return client_id

    def remove(self, client_id: int) -> None:
        """Remove a client; idempotent."""
        self._sinks.pop(client_id, None)

    # To one of them.

    def put_outputs(self, outputs: Mapping[int, EngineCoreOutputs], timings: StepTimings) -> None:
        """Hand on what a step gave, by client."""
        for client_id, client_outputs in outputs.items():
            sink = self._sinks.get(client_id)
            if sink is not None:
                sink.put_outputs(client_outputs, timings)

    def put_finished(self, ended: Mapping[int, Sequence[FinishedRequest]]) -> None:
        """Tell of requests that were ended from outside a step, by client."""
        for client_id, finished in ended.items():
            sink = self._sinks.get(client_id)
            if sink is not None:
                sink.put_finished(finished)

    def put_admitted(self, client_id: int, request_id: str) -> None:
        """Tell that a request was taken after all."""
        sink = self._sinks.get(client_id)
        if sink is not None:
            sink.put_admitted(request_id)

    # To all.

    def put_suspicions(self, counts: Mapping[str, int]) -> None:
        for sink in list(self._sinks.values()):
            sink.put_suspicions(counts)

    def set_recovering(self, recovering: bool) -> None:
        for sink in list(self._sinks.values()):
            sink.set_recovering(recovering)

    def set_draining(self, deadline_s: float) -> None:
        for sink in list(self._sinks.values()):
            sink.set_draining(deadline_s)

    def end(self, make_error: Callable[[], PagewireError]) -> None:
        """Let go of all, each with an error of its own: it keeps the traceback of its raise."""
        for sink in list(self._sinks.values()):
            sink.end(make_error())


def going_away() -> ServiceUnavailableError:
    """Return what clients of an engine hear that drains."""
    return ServiceUnavailableError("the engine is going away", reason="DRAINING")
