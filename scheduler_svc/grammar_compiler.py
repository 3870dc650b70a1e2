"""Makes grammars and their masks off the event loop; the engine's only way to either.

It owns the vocabulary (fetched once, in the background), the threads on which forms are compiled,
those on which masks are made, and one task for each request whose grammar is not ready yet. A slow
or hostile form holds up its own request, and at most the compiling of others, never a step. It
knows no scheduler.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from pagewire.engine_config import StructuredOutputsConfig
from pagewire.kit.logs import get_logger
from pagewire.kit.rust_panics import RustPanicsRaised
from pagewire.kit.tasks import TaskOwner
from pagewire.kit.tls import PeerTls
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import (
    GRAMMAR_MISMATCH,
    GRAMMAR_TIMEOUT,
    GRAMMAR_TOO_COMPLEX,
    INVALID_GRAMMAR,
    NOT_SERVED,
    Grammar,
    GrammarError,
)
from scheduler_svc.grammar_backend import GrammarBackend
from scheduler_svc.vocabulary_client import VocabularyClient

MAX_MASK_THREADS = 4
MASKS_TIMEOUT_S = 20.0
"""Longest time for the masks of one step; limits of the library end a form long before."""
_MIN_STACK_BYTES = 64 * 1024 * 1024
_STACK_BYTES_PER_GRAMMAR_BYTE = 512

P = ParamSpec("P")
R = TypeVar("R")

log = get_logger("scheduler_svc.grammar_compiler")

OnReady = Callable[[Grammar], None]
OnFailed = Callable[[GrammarError], None]
MaskJob = tuple[Grammar, Sequence[int]]


@dataclass(frozen=True, slots=True)
class GrammarModel:
    """What grammars need to know of the engine's model."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    tokenizer_fingerprint: str


@dataclass(frozen=True, slots=True)
class _Job:
    """A request whose grammar is wanted."""

    structured_outputs: StructuredOutputs
    output_token_ids: Sequence[int]
    on_ready: OnReady
    on_failed: OnFailed
    timeout_s: float | None


class GrammarCompiler:
    """Belongs to one event loop. `open` once the model is known, `close` at the end."""

    def __init__(
        self,
        config: StructuredOutputsConfig,
        tokenizers: Sequence[str],
        tls: PeerTls | None = None,
    ) -> None:
        self._config = config
        self._is_served = bool(tokenizers)
        self._client = VocabularyClient(tokenizers, tls)
        self._tasks = TaskOwner()
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._backend: GrammarBackend | None = None
        self._has_model = False
        self._refusal: GrammarError | None = None
        self._settled = asyncio.Event()
        """There is a backend, or a reason why there is none for now."""
        stack_bytes = _STACK_BYTES_PER_GRAMMAR_BYTE * config.max_grammar_bytes
        self._compile_pool = _DeepThreadPool(
            max(stack_bytes, _MIN_STACK_BYTES), config.grammar_compile_threads, "grammar-compile"
        )
        self._num_mask_threads = min(MAX_MASK_THREADS, os.cpu_count() or 1)
        self._mask_pool = ThreadPoolExecutor(self._num_mask_threads, "grammar-mask")

    def open(self, model: GrammarModel) -> None:
        """Begin to fetch the model's vocabulary; called when the first worker is ready.

        Later calls do nothing: an engine keeps its model.
        """
        if self._is_served and not self._has_model:
            self._has_model = True
            self._tasks.spawn(self._make_backend(model), name="grammar-vocabulary")

    def start(
        self,
        request_id: str,
        structured_outputs: StructuredOutputs,
        output_token_ids: Sequence[int],
        on_ready: OnReady,
        on_failed: OnFailed,
        *,
        is_resumed: bool = False,
    ) -> None:
        """Make a request's grammar; one of the callbacks is called on the loop, later than this.

        Args:
            request_id: Of one job at a time; for `cancel`.
            structured_outputs: The form.
            output_token_ids: What a resumed request has already; the grammar stands behind it.
            on_ready: Takes the grammar.
            on_failed: Takes the reason why there is none.
            is_resumed: It was admitted before, so it waits as long as it takes: when a replica
                comes back, all forms are to be compiled at once, and nobody may be lost by that.
        """
        self.cancel(request_id)
        timeout_s = None if is_resumed else self._config.grammar_compile_timeout_s
        job = _Job(structured_outputs, output_token_ids, on_ready, on_failed, timeout_s)
        self._jobs[request_id] = self._tasks.spawn(
            self._run(request_id, job), name=f"grammar-{request_id}"
        )

    def cancel(self, request_id: str) -> None:
        """Forget a request: none of its callbacks is called any more. Unknown ids: nothing."""
        task = self._jobs.pop(request_id, None)
        if task is not None:
            task.cancel()

    async def masks(self, jobs: Sequence[MaskJob]) -> list[bytes | GrammarError]:
        """The masks of a step: for each (grammar, drafts) what `Grammar.masks` gives or raises.

        No grammar may come twice in a call, or be touched until it returns.
        """
        if not jobs:
            return []
        # Contiguous shares, so that the answers only need to be put together.
        share = -(-len(jobs) // self._num_mask_threads)
        loop = asyncio.get_running_loop()
        parts = [jobs[start : start + share] for start in range(0, len(jobs), share)]
        futures = [loop.run_in_executor(self._mask_pool, _make_masks, part) for part in parts]
        await asyncio.wait(futures, timeout=MASKS_TIMEOUT_S)
        answers: list[bytes | GrammarError] = []
        for part, future in zip(parts, futures, strict=True):
            # A thread that still works holds its grammars: their requests can't go on.
            answers += future.result() if future.done() else [_too_slow()] * len(part)
        return answers

    async def close(self) -> None:
        """End everything; idempotent. A thread that still compiles ends by itself."""
        self._jobs.clear()
        await self._tasks.close()
        for pool in (self._compile_pool, self._mask_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _make_backend(self, model: GrammarModel) -> None:
        if not any(token_id < model.vocab_size for token_id in model.eos_token_ids):
            self._refuse("the model has no end-of-sequence token")
            return
        try:
            vocabulary = await self._client.fetch(model.tokenizer_fingerprint, self._on_mismatch)
            self._backend = await self._in_thread(
                GrammarBackend,
                vocabulary,
                model.vocab_size,
                model.eos_token_ids,
                self._config.grammar_cache_size,
            )
        except Exception as exc:
            log.error("vocabulary_failed", exc_info=exc)
            self._refuse("the model's vocabulary can't be used")
            return
        self._settled.set()
        log.info("structured_outputs_ready", num_tokens=len(vocabulary.token_bytes))

    def _on_mismatch(self) -> None:
        self._refuse(
            "the tokenizer has another vocabulary than the model; --tokenizers must name one of the"
            " model's"
        )

    def _refuse(self, problem: str) -> None:
        """Answer requests at once as long as there is no backend."""
        self._refusal = _not_served(problem)
        self._settled.set()

    async def _run(self, request_id: str, job: _Job) -> None:
        grammar: Grammar | None = None
        try:
            async with asyncio.timeout(job.timeout_s):
                grammar = await self._make(job)
        except TimeoutError:
            error = self._timeout_error()
        except GrammarError as exc:
            error = exc
        except Exception as exc:
            # A bug that one form meets must not end the others.
            log.error("grammar_failed", exc_info=exc)
            error = GrammarError(INVALID_GRAMMAR, "structured_outputs: it could not be compiled")
        # `cancel` was not called, or this task would have ended above.
        del self._jobs[request_id]
        if grammar is not None:
            job.on_ready(grammar)
        else:
            job.on_failed(error)

    async def _make(self, job: _Job) -> Grammar:
        if not self._is_served:
            raise _not_served("start the scheduler with --tokenizers")
        await self._settled.wait()
        if self._backend is None:
            raise self._refusal or self._timeout_error()
        return await self._in_thread(
            _compile, self._backend, job.structured_outputs, tuple(job.output_token_ids)
        )

    async def _in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        call = partial(function, *args, **kwargs)
        with RustPanicsRaised():
            return await asyncio.get_running_loop().run_in_executor(self._compile_pool, call)

    def _timeout_error(self) -> GrammarError:
        timeout_s = self._config.grammar_compile_timeout_s
        if self._backend is None:
            problem = "no tokenizer gave the model's vocabulary"
        else:
            problem = "it was not compiled"
        return GrammarError(
            GRAMMAR_TIMEOUT, f"structured_outputs: {problem} within {timeout_s:g} s"
        )


def _too_slow() -> GrammarError:
    return GrammarError(
        GRAMMAR_TOO_COMPLEX, f"structured_outputs: a step took more than {MASKS_TIMEOUT_S:g} s"
    )


def _not_served(problem: str) -> GrammarError:
    return GrammarError(NOT_SERVED, f"structured outputs are not served: {problem}")


class _DeepThreadPool(ThreadPoolExecutor):
    """Threads with room for deep recursion.

    The library walks a form's definitions recursively: a chain of them as long as the longest form
    would overrun an ordinary stack, and that ends the process. Pages that are not used cost
    nothing.
    """

    def __init__(self, stack_bytes: int, max_workers: int, name: str) -> None:
        super().__init__(max_workers, name)
        self._stack_bytes = stack_bytes

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit as any pool does; a thread that this starts has the larger stack."""
        previous = threading.stack_size(self._stack_bytes)
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            threading.stack_size(previous)


def _compile(
    backend: GrammarBackend, outputs: StructuredOutputs, output_token_ids: Sequence[int]
) -> Grammar:
    grammar = backend.compile(outputs)
    if not all(map(grammar.accept, output_token_ids)):
        raise GrammarError(
            GRAMMAR_MISMATCH, "output_token_ids: they don't have the form of structured_outputs"
        )
    return grammar


def _make_masks(jobs: Sequence[MaskJob]) -> list[bytes | GrammarError]:
    return [_mask_or_error(grammar, drafts) for grammar, drafts in jobs]


def _mask_or_error(grammar: Grammar, drafts: Sequence[int]) -> bytes | GrammarError:
    try:
        with RustPanicsRaised():
            return grammar.masks(drafts)
    except GrammarError as error:
        return error
    except Exception as exc:
        # A bug that one grammar meets must not end the others' step.
        log.error("masks_failed", exc_info=exc)
        return GrammarError(INVALID_GRAMMAR, "structured_outputs: it could not be followed")
