"""A gateway on gRPC's own threads that says what a test tells it to, and remembers what it heard.

It runs beside the test's event loop, so that clients that block can be tested, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from pagewire.kit.errors import DETAILS_KEY, PagewireError, to_rpc_status
from pagewire.v1 import inference_pb2, inference_pb2_grpc

Script = Callable[[Any, "Call"], Iterator[Any]]
TIMEOUT_S = 60.0


class Call:
    """One call, as the server sees it."""

    def __init__(self, request: Any, context: Any) -> None:
        self.request = request
        self.metadata = dict(context.invocation_metadata())
        self.time_remaining = context.time_remaining()
        self.ended = threading.Event()
        context.add_callback(self.ended.set)
        self.abort = context.abort

    def hang(self) -> None:
        """Wait until the client goes away."""
        assert self.ended.wait(TIMEOUT_S)


class ScriptedInference(inference_pb2_grpc.InferenceServiceServicer):
    """Answers by `scripts[method]`; a script that raises a `PagewireError` fails the call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.scripts: dict[str, Script] = {}
        self.target = ""
        self._changed = threading.Condition()

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._play("Generate", request, context)

    def Chat(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._play("Chat", request, context)

    def GenerateBatch(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._play("GenerateBatch", request, context)

    def CountTokens(self, request: Any, context: Any) -> Any:
        return self._single("CountTokens", request, context)

    def Tokenize(self, request: Any, context: Any) -> Any:
        return self._single("Tokenize", request, context)

    def Detokenize(self, request: Any, context: Any) -> Any:
        return self._single("Detokenize", request, context)

    def ListModels(self, request: Any, context: Any) -> Any:
        return self._single("ListModels", request, context)

    def Embed(self, request: Any, context: Any) -> Any:
        return inference_pb2.EmbedResponse()

    def wait_calls(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= number, TIMEOUT_S)

    def _single(self, method: str, request: Any, context: Any) -> Any:
        return next(self._play(method, request, context))

    def _play(self, method: str, request: Any, context: Any) -> Iterator[Any]:
        call = Call(request, context)
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        try:
            yield from self.scripts[method](request, call)
        except PagewireError as exc:
            status = to_rpc_status(exc)
            context.set_trailing_metadata(((DETAILS_KEY, status.SerializeToString()),))
            context.abort(exc.code, status.message)


@contextmanager
def running_inference(
    listen: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials | None = None,
    max_calls: int = 16,
) -> Iterator[ScriptedInference]:
    """Run a scripted gateway, on a free port where `listen` has port 0.

    Args:
        listen: host:port.
        credentials: For TLS.
        max_calls: Calls that it plays at a time.
    """
    servicer = ScriptedInference()
    server = grpc.server(ThreadPoolExecutor(max_workers=max_calls))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    if credentials is None:
        port = server.add_insecure_port(listen)
    else:
        port = server.add_secure_port(listen, credentials)
    server.start()
    servicer.target = f"{listen.rpartition(':')[0]}:{port}"
    try:
        yield servicer
    finally:
        server.stop(0).wait(TIMEOUT_S)
