"""One Generate call: its outputs side by side, told as one stream of messages.

It knows the engine's clients and no gRPC. Outputs that the caller has not read yet merge, so what
waits is bounded by the outputs' own length.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from smg_grpc_proto.generated import vllm_engine_pb2

from pagewire.kit.errors import AlreadyExistsError
from pagewire.sampling_params import SamplingParams
from scheduler_svc.direct_client import DirectClient
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.vllm_engine import convert
from scheduler_svc.vllm_engine.choice import Choice
from scheduler_svc.vllm_engine.parameters import GenerateParameters
from scheduler_svc.vllm_engine.stop_strings import StopStringMatcher
from scheduler_svc.vocabulary import Vocabulary


class Generation:
    """Use: make it, `add`, iterate `messages`, `close` in any case."""

    def __init__(
        self,
        core: EngineCore,
        request_id: str,
        parameters: GenerateParameters,
        vocabulary: Vocabulary | None,
        arrival_time_s: float,
    ) -> None:
        """Prepare the outputs.

        Args:
            core: The engine.
            request_id: Of the call; the engine's requests are named after it.
            parameters: What is asked for.
            vocabulary: To find stop strings by; without it they are left to the caller.
            arrival_time_s: Unix time.
        """
        self._wake = asyncio.Event()
        self._stop = parameters.stop
        self._choices: list[Choice] = []
        for index, params in enumerate(parameters.choices):
            client = DirectClient(core, self._wake)
            name = request_id if len(parameters.choices) == 1 else f"{request_id}-{index}"
            request = EngineCoreRequest(
                request_id=name,
                prompt_token_ids=parameters.prompt_token_ids,
                # The engine knows no text.
                sampling_params=replace(params, stop=()),
                arrival_time_s=arrival_time_s,
                client_id=client.client_id,
            )
            matcher = _stop_matcher(vocabulary, params)
            self._choices.append(Choice(index, client, request, matcher))

    def add(self) -> None:
        """Queue all outputs.

        Raises:
            PagewireError: One is refused; `close` ends the others.
        """
        for choice in self._choices:
            choice.add()

    def abort(self) -> None:
        """End what has not ended; the messages tell it."""
        for choice in self._choices:
            if choice.end is None:
                choice.abort()

    def close(self) -> None:
        """End what has not ended, without a word; idempotent."""
        for choice in self._choices:
            choice.close()

    async def messages(self, *, stream: bool) -> AsyncIterator[vllm_engine_pb2.GenerateResponse]:
        """The answer.

        Args:
            stream: Send tokens as they come, and each output's end when it comes; else only the
                outputs, whole, in their order, when all have ended.

        Raises:
            PagewireError: An output failed, or the engine goes away.
        """
        live = list(self._choices)
        while live:
            await self._wake.wait()
            self._wake.clear()
            for choice in live:
                output = choice.take()
                if not stream:
                    choice.keep_logprobs(output)
                    continue
                if output.token_ids:
                    yield convert.chunk(choice, output)
                if choice.end is not None:
                    yield convert.complete(choice, self._stop)
            live = [choice for choice in live if choice.end is None]
        if not stream:
            for choice in self._choices:
                yield convert.complete(choice, self._stop)


class LiveGenerations:
    """The calls under way by the caller's request ids, for aborts from outside."""

    def __init__(self) -> None:
        self._generations: dict[str, Generation] = {}

    @contextmanager
    def hold(self, request_id: str, generation: Generation) -> Iterator[None]:
        """Know the call while the block runs.

        Raises:
            AlreadyExistsError: Another call under way has the id.
        """
        if request_id in self._generations:
            raise AlreadyExistsError(f"request {request_id} is under way", field="request_id")
        self._generations[request_id] = generation
        try:
            yield
        finally:
            del self._generations[request_id]

    def abort(self, request_ids: Iterable[str]) -> None:
        """End calls; unknown ids are passed over: they may have ended."""
        for request_id in request_ids:
            generation = self._generations.get(request_id)
            if generation is not None:
                generation.abort()


def _stop_matcher(
    vocabulary: Vocabulary | None, params: SamplingParams
) -> StopStringMatcher | None:
    if vocabulary is None or not params.stop:
        return None
    return StopStringMatcher(
        vocabulary,
        params.stop,
        params.min_tokens,
        skip_special_tokens=params.skip_special_tokens,
    )
