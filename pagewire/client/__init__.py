"""The SDK for a running gateway, over its public gRPC API: `AsyncClient` and `Client`.

`types` is what comes back, `options` what requests take; `requests` and `responses` are the only
modules that build and read messages, `transport` knows how to connect.
"""

from pagewire.client.aio import AsyncClient, AsyncGenerationStream
from pagewire.client.errors import RequestCancelledError
from pagewire.client.sync import Client, GenerationStream
from pagewire.client.transport import Tls

__all__ = [
    "AsyncClient",
    "AsyncGenerationStream",
    "Client",
    "GenerationStream",
    "RequestCancelledError",
    "Tls",
]
