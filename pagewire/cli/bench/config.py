"""Settings of `pagewire bench serve`; names and meanings of flags are those of vLLM's benchmark."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pagewire.cli.bench.figures import REQUEST_METRICS
from pagewire.cli.client_tls import ClientTls


class Backend(StrEnum):
    """How the server is spoken to."""

    OPENAI = "openai"
    OPENAI_CHAT = "openai-chat"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """The server and how it is asked."""

    backend: Backend = Backend.OPENAI
    """openai: /v1/completions of any server that has it. openai-chat: /v1/chat/completions. grpc:
    the gateway's own API."""
    base_url: str = "http://127.0.0.1:8000"
    """Of the HTTP API, without /v1."""
    target: str = "127.0.0.1:50050"
    """Address of the gateway's gRPC API."""
    model: str | None = None
    """Name of the model. Default: the first one of /v1/models; of the gRPC API its only one."""
    api_key: str | None = field(default=None, repr=False, metadata={"secret": True})
    """Key to send, if the server wants one."""
    ignore_eos: bool = False
    """Ask for all tokens of each output, whatever the model draws. Servers that are not used to
    benchmarks may refuse it."""
    extra_body: str = "{}"
    """JSON object of more fields for the body of each HTTP request, such as {"top_k": 1}."""
    request_timeout_s: float = field(default=600.0, metadata={"flag": "--request-timeout"})
    """Seconds until a request counts as failed."""
    tls: ClientTls = field(default_factory=ClientTls)

    def __post_init__(self) -> None:
        if self.tls.is_on and self.backend is not Backend.GRPC:
            rule = "is of --backend grpc; HTTP is encrypted where --base-url begins with https://"
            raise ValueError("backend", self.backend.value, rule)
        if self.request_timeout_s <= 0:
            raise ValueError("request_timeout_s", self.request_timeout_s, "must be above 0")
        try:
            value = json.loads(self.extra_body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ValueError("extra_body", self.extra_body, "must be a JSON object")

    @property
    def more_fields(self) -> dict[str, Any]:
        """`extra_body`, read."""
        return dict(json.loads(self.extra_body))


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """What is asked, and when."""

    num_prompts: int | None = None
    """Requests. Default: 100 random ones, or all of the file."""
    dataset_path: Path | None = None
    """JSONL file of requests to replay, instead of random ones: docs/benchmarks.md."""
    trace_speed: float = 1.0
    """With --dataset-path: times as fast as the requests came."""
    random_input_len: int = 128
    """Tokens of each random prompt, after what it shares."""
    random_output_len: int = 128
    """Tokens to ask for."""
    random_prefix_len: int = 0
    """Tokens that random prompts share at their beginning."""
    random_num_prefixes: int = 1
    """Different beginnings that they share."""
    random_range_ratio: float = 0.0
    """Lengths are drawn from (1 - ratio) to (1 + ratio) times theirs."""
    text_prompts: bool = False
    """Random prompts are words, about as many as tokens, for servers that take no token ids. Chats
    always have words."""
    request_rate: float | None = None
    """Requests a second, with random gaps. Default: all are due at once."""
    burstiness: float = 1.0
    """Of the gaps: 1 is a Poisson process, below it they come in bursts, above it more evenly."""
    max_concurrency: int | None = None
    """Most requests at a time; others wait for a place."""
    num_warmups: int = 1
    """Requests before the run, one after another, that count for nothing."""
    seed: int = 0
    """Of prompts, lengths and gaps. Another one keeps an earlier run's prefixes out of this one."""

    def __post_init__(self) -> None:
        for name in ("random_input_len", "random_output_len", "random_num_prefixes"):
            if getattr(self, name) < 1:
                raise ValueError(name, getattr(self, name), "must be at least 1")
        for name in ("random_prefix_len", "num_warmups"):
            if getattr(self, name) < 0:
                raise ValueError(name, getattr(self, name), "must not be negative")
        for name in ("num_prompts", "max_concurrency"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(name, getattr(self, name), "must be at least 1")
        for name in ("request_rate", "burstiness", "trace_speed"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(name, getattr(self, name), "must be above 0")
        if not 0 <= self.random_range_ratio < 1:
            raise ValueError("random_range_ratio", self.random_range_ratio, "must be in [0, 1)")


@dataclass(frozen=True, slots=True)
class ResultFlags:
    """What is made of it."""

    metric_percentiles: tuple[float, ...] = (50.0, 90.0, 99.0)
    """Which percentiles of each latency."""
    goodput: tuple[str, ...] = ()
    """Objectives in milliseconds, such as ttft:200,tpot:50,e2e:5000: how many requests a second
    keep all of them."""
    output_file: Path | None = None
    """File for all figures as JSON."""

    def __post_init__(self) -> None:
        for percent in self.metric_percentiles:
            if not 0 <= percent <= 100:
                raise ValueError("metric_percentiles", percent, "must be between 0 and 100")
        for text in self.goodput:
            name, _, bound = text.partition(":")
            if name not in REQUEST_METRICS or not _is_positive(bound):
                rule = f"must be {' or '.join(REQUEST_METRICS)}, a colon and milliseconds"
                raise ValueError("goodput", text, rule)

    @property
    def objectives(self) -> dict[str, float]:
        """Milliseconds by metric."""
        pairs = (text.partition(":") for text in self.goodput)
        return {name: float(bound) for name, _, bound in pairs}


@dataclass(frozen=True, slots=True)
class BenchServeConfig:
    """Put load on a server and show what its clients saw."""

    server: ServerFlags = field(default_factory=ServerFlags)
    load: LoadFlags = field(default_factory=LoadFlags)
    result: ResultFlags = field(default_factory=ResultFlags)


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
