"""The life of a client's request, the same for HTTP and gRPC: check, tokenize, add, stream, abort.

`generate` is a context manager: inside it the request is admitted and its outputs can be read;
whoever leaves it, for whatever reason, leaves nothing running. It knows the engines and the
tokenizer by their clients, and nothing of HTTP or protobuf.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from gateway.access.clients import admitted, charge
from gateway.config import RequestLimits, Timeouts
from gateway.detokenizer import Detokenizer
from gateway.engine_client import EngineClient, EngineInfo
from gateway.engine_pool import EnginePool
from gateway.generation import (
    AbortReason,
    GenerationRequest,
)
from gateway.live_generation import Generation
from gateway.live_request import EngineRequest, LiveRequest
from gateway.message_service import MessageService
from gateway.metrics import GatewayMetrics
from gateway.output_collector import OutputCollector
from gateway.output_record import OutputRecord, PromptRecord
from gateway.prompts import prompt_texts, tokenize_bad_words, tokenize_prompts
from gateway.readiness import Readiness
from gateway.request_plan import (
    check_sizes,
    child_params,
    fit_to_context,
    prompt_limit,
    resolve_params,
)
from gateway.tokenizer_client import TokenizerClient
from pagewire.kit import context
from pagewire.kit.errors import QueueFullError, ServiceUnavailableError
from pagewire.sampling_params import SamplingParams

_NS_PER_S = 1_000_000_000
_RETRY_AFTER_S = 1.0
_NUM_FINGERPRINT_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Backends:
    """What the service works with."""

    engines: EnginePool
    tokenizer: TokenizerClient
    detokenizer: Detokenizer
    readiness: Readiness


@dataclass(frozen=True, slots=True)
class _Plan:
    """A checked request, ready to be given to an engine."""

    request: GenerationRequest
    info: EngineInfo
    prompts: list[tuple[Sequence[int], SamplingParams]]
    arrival_time_ns: int
    arrived_s: float
    """The same moment on the monotonic clock."""
    deadline_ns: int


class RequestService:
    """Starts and ends generations. Used from one event loop."""

    def __init__(
        self,
        backends: Backends,
        limits: RequestLimits,
        timeouts: Timeouts,
        metrics: GatewayMetrics,
        messages: MessageService,
    ) -> None:
        self.engines = backends.engines
        self.readiness = backends.readiness
        self.tokenizer = backends.tokenizer
        self._detokenizer = backends.detokenizer
        self._limits = limits
        self._timeouts = timeouts
        self._metrics = metrics
        self._messages = messages
        self._generations: set[Generation] = set()
        self._num_live = 0
        self.num_requests = 0
        """Of clients, that found room; grows forever."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.last_end_s = 0.0
        """When a generation ended last, by the monotonic clock; 0: none has."""

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[Generation]:
        """Admit a request; inside, read `outputs()`. On exit whatever still runs is aborted.

        Raises:
            PagewireError: It was refused; nothing has been generated.
        """
        arrival_time_ns, arrived_s = time.time_ns(), time.monotonic()
        timeout_s = self._timeouts.request_timeout_s
        if request.timeout_s is not None:
            timeout_s = min(timeout_s, max(request.timeout_s, 0.0))
        engine, info = self._choose(request.model)
        check_sizes(request, self._limits, info)
        request = self._messages.prepare(request)
        params = resolve_params(request, info)
        limit = prompt_limit(request, info)
        generation = Generation(
            request_id=request.request_id or context.request_id() or context.new_request_id(),
            model=info.served_model_names[0],
            deadline_s=asyncio.get_running_loop().time() + timeout_s,
            collector=OutputCollector(
                self._limits.max_buffered_output_bytes, lambda: self._release(generation)
            ),
            send_timeout_s=self._timeouts.send_timeout_s,
            system_fingerprint=f"fp_{info.engine_fingerprint[:_NUM_FINGERPRINT_DIGITS]}",
            prompt_only=request.prompt_only,
        )
        num_outputs, trace = len(request.prompts) * request.n, generation.trace
        # Without room there is nothing to trace: a flood of refusals pushes no trace out.
        with self._counted(generation, num_outputs), trace.generating(generation.facts):
            try:
                async with generation.deadline():
                    rows = await tokenize_prompts(self.tokenizer, request, limit)
                    params = await tokenize_bad_words(self.tokenizer, params, info.vocab_size)
                    await self._messages.attach(generation, request, rows)
                    params = generation.messages.form_behind_reasoning(params)
                    planned = await self._messages.plan_thinking(generation, params, rows)
                    if request.echo:
                        texts = await prompt_texts(self.tokenizer, request, rows)
                        generation.prompt_texts = texts
                trace.mark("tokenize", "tokenize_wire")
                plan = _Plan(
                    request=request,
                    info=info,
                    prompts=[
                        (ids, fit_to_context(each, request, len(ids), info))
                        for ids, each in zip(rows, planned, strict=True)
                    ],
                    arrival_time_ns=arrival_time_ns,
                    arrived_s=arrived_s,
                    deadline_ns=arrival_time_ns + int(timeout_s * _NS_PER_S),
                )
                generation.enter(self._fan_out(plan, generation), request.n)
                await self._admit(generation, request.n, engine, info)
                admitted()
                yield generation
            finally:
                self._release(generation)
                generation.close()

    @property
    def generations(self) -> Collection[Generation]:
        """Requests of clients that are being answered."""
        return self._generations

    @property
    def num_live_requests(self) -> int:
        """Requests of clients that are being answered."""
        return len(self._generations)

    async def wait_idle(self) -> None:
        """Wait until no generation is left."""
        await self._idle.wait()

    def end_all(self) -> None:
        """End what still runs at the end of a drain."""
        error = ServiceUnavailableError("the gateway is shutting down", reason="SHUTTING_DOWN")
        for generation in self._generations:
            generation.fail(error, AbortReason.SHUTDOWN)

    def _choose(self, model: str) -> tuple[EngineClient, EngineInfo]:
        self.readiness.check()
        tokenizer = self.tokenizer.info
        return self.engines.choose(model, tokenizer.fingerprint if tokenizer else "")

    @contextmanager
    def _counted(self, generation: Generation, num_outputs: int) -> Iterator[None]:
        """Hold room for the outputs; without room, refuse."""
        if self._num_live + num_outputs > self._limits.max_live_outputs:
            raise QueueFullError(
                f"{self._num_live} outputs are being generated, at most"
                f" {self._limits.max_live_outputs} may be",
                reason="GATEWAY_FULL",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._generations.add(generation)
        self.num_requests += 1
        self._count(num_outputs)
        try:
            yield
        finally:
            self._generations.discard(generation)
            self.last_end_s = time.monotonic()
            self._count(-num_outputs)
            usage = generation.usage
            charge(usage.prompt_tokens, usage.completion_tokens)
            # An admission that failed keeps its error, whose traceback leads back to the request.
            generation.requests = []

    def _count(self, num_outputs: int) -> None:
        self._num_live += num_outputs
        self._metrics.num_live_outputs.set(self._num_live)
        if self._num_live:
            self._idle.clear()
        else:
            self._idle.set()

    def _fan_out(self, plan: _Plan, generation: Generation) -> list[LiveRequest]:
        """Return the children, those of one prompt side by side."""
        request = plan.request
        # The client may use one id twice; engines and logs want to tell the requests apart.
        name = f"{generation.request_id}-{secrets.token_hex(4)}"
        children = []
        for prompt_index, (token_ids, params) in enumerate(plan.prompts):
            record = self._prompt_record(plan, token_ids, params)
            for child in range(request.n):
                index = prompt_index * request.n + child
                engine_request = EngineRequest(
                    request_id=f"{name}-{index}",
                    prompt_token_ids=token_ids,
                    sampling_params=child_params(params, child),
                    arrival_time_ns=plan.arrival_time_ns,
                    deadline_ns=plan.deadline_ns,
                    priority=request.priority,
                    cache_salt=request.cache_salt,
                    traceparent=context.traceparent() or "",
                )
                children.append(
                    LiveRequest(
                        engine_request,
                        index,
                        plan.info.eos_token_ids,
                        generation.collector,
                        OutputRecord(record),
                    )
                )
        return children

    def _prompt_record(
        self, plan: _Plan, token_ids: Sequence[int], params: SamplingParams
    ) -> PromptRecord:
        return PromptRecord(
            metrics=self._metrics.requests,
            model_name=plan.info.served_model_names[0],
            max_model_len=plan.info.max_model_len,
            num_prompt_tokens=len(token_ids),
            num_outputs=plan.request.n,
            max_tokens=params.max_tokens,
            arrived_s=plan.arrived_s,
        )

    async def _admit(
        self, generation: Generation, n: int, engine: EngineClient, info: EngineInfo
    ) -> None:
        for first in range(0, len(generation.requests), n):
            self.engines.dispatch(generation.requests[first : first + n], engine, info)
        generation.trace.dispatched()
        async with generation.deadline():
            await asyncio.gather(*(request.admission for request in generation.requests))

    def _release(self, generation: Generation) -> None:
        """Leave nothing of the generation in the engine and the tokenizer; idempotent."""
        for request in generation.requests:
            request.give_up()
            if request.owner is not None:
                request.owner.abort(request, generation.abort_reason)
            self._detokenizer.forget(request)
