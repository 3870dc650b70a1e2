"""pagewire: a serving system for large language models as four small gRPC services.

This package is the Python surface that users install: the SDK (`Client`, `AsyncClient`, `LLM`), the
command line, the configuration object, the generated stubs, and the plumbing that the services
share. It never imports torch. Importing it is cheap: the names below are loaded when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagewire.client.aio import AsyncClient
    from pagewire.client.sync import Client
    from pagewire.client.transport import Tls
    from pagewire.client.types import ChatMessage, CompletionOutput, RequestOutput, Tool
    from pagewire.llm import LLM
    from pagewire.sampling_params import SamplingParams, StructuredOutputs

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "pagewire.client.aio",
    "ChatMessage": "pagewire.client.types",
    "Client": "pagewire.client.sync",
    "CompletionOutput": "pagewire.client.types",
    "LLM": "pagewire.llm",
    "RequestOutput": "pagewire.client.types",
    "SamplingParams": "pagewire.sampling_params",
    "StructuredOutputs": "pagewire.sampling_params",
    "Tls": "pagewire.client.transport",
    "Tool": "pagewire.client.types",
}

__all__ = [
    "LLM",
    "AsyncClient",
    "ChatMessage",
    "Client",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "Tls",
    "Tool",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
