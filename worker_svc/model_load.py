"""One load of a model on the device thread, which whoever waits for it can watch.

Owns progress (latest only, at a bounded rate), cancellation, the log lines of a load, and which
error a failed one becomes. Knows nothing of leases: a load outlives the call that began it, so that
a scheduler that comes back finds its weights. `watch` and `cancel` are called on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    PagewireError,
    ServiceUnavailableError,
)
from pagewire.kit.logs import get_logger
from pagewire.model_source import resolve_model, resolve_tokenizer
from pagewire.tokenizer_fingerprint import fingerprint_of_model
from worker_svc.device_thread import DeviceThread
from worker_svc.memory import check_available
from worker_svc.runners import RunnerFactory
from worker_svc.step import ModelInfo, Runner

log = get_logger("worker_svc.model_load")

LOAD_FAILED = "MODEL_LOAD_FAILED"
_NOTIFY_INTERVAL_S = 0.1
_LOG_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is."""

    stage: str
    """Such as `load_weights`."""
    fraction: float
    """In [0, 1]."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A runner with its weights."""

    digest: str
    """Of the configuration, and this worker's rank of several."""
    config: EngineConfig
    runner: Runner
    info: ModelInfo
    tokenizer_fingerprint: str
    bytes_per_block: int


class _LoadCancelledError(Exception):
    """Raised into the runner's load by its progress callback."""


class ModelLoad:
    """Loads in the background from `run` on; `watch` may be called by any number of callers."""

    def __init__(self, config: EngineConfig, digest: str, make_runner: RunnerFactory) -> None:
        self.digest = digest
        self._config = config
        self._make_runner = make_runner
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._progress = LoadProgress("waiting_for_device", 0.0)
        self._outcome: LoadedModel | PagewireError | None = None
        self._cancelled = False
        self._next_notify_s = 0.0
        self._next_log_s = 0.0

    async def run(self, device: DeviceThread) -> LoadedModel | None:
        """Load on `device`; the model, or None if it failed, which `watch` raises."""
        begin_s = time.monotonic()
        try:
            outcome: LoadedModel | PagewireError = await device.run(self._load)
        except asyncio.CancelledError:
            self._finish(_ended())
            raise
        except Exception as error:
            outcome = to_load_error(error)
            # What is the user's to mend is told once: by whoever asked for the load.
            level = logging.ERROR if isinstance(outcome, InternalError) else logging.INFO
            log.log(level, "model_load_failed", reason=outcome.reason, exc_info=error)
        else:
            log.info("model_loaded", duration_s=round(time.monotonic() - begin_s, 3))
        self._finish(outcome)
        return outcome if isinstance(outcome, LoadedModel) else None

    def cancel(self) -> None:
        """Ask the load to end; it does so at its next progress report."""
        self._cancelled = True

    async def watch(self) -> AsyncIterator[LoadProgress]:
        """Yield progress until the load ends.

        Raises:
            PagewireError: The load failed.
        """
        reported: LoadProgress | None = None
        while self._outcome is None:
            changed = self._changed
            if self._progress != reported:
                reported = self._progress
                yield reported
            else:
                await changed.wait()
        if isinstance(self._outcome, PagewireError):
            raise self._outcome

    def _load(self) -> LoadedModel:
        """Runs on the device thread."""
        if self._cancelled:
            raise _LoadCancelledError
        self._report("start_device", 0.0)  # importing torch takes seconds
        runner = self._make_runner(self._config)
        info = runner.load(self._report)
        bytes_per_block = runner.kv_bytes_per_block(self._config.cache.block_size)
        check_available(runner.available_kv_bytes(), bytes_per_block)
        self._report("read_tokenizer", 0.0)
        fingerprint = _tokenizer_fingerprint(self._config)
        return LoadedModel(self.digest, self._config, runner, info, fingerprint, bytes_per_block)

    def _report(self, stage: str, fraction: float) -> None:
        """The runner's progress callback, on the device thread."""
        if self._cancelled:
            raise _LoadCancelledError
        progress = LoadProgress(stage, fraction)
        now_s = time.monotonic()
        new_stage = stage != self._progress.stage
        self._progress = progress
        if new_stage or now_s >= self._next_log_s:
            self._next_log_s = now_s + _LOG_INTERVAL_S
            log.info("model_load_progress", stage=stage, percent=round(100 * fraction))
        if new_stage or now_s >= self._next_notify_s:
            self._next_notify_s = now_s + _NOTIFY_INTERVAL_S
            self._loop.call_soon_threadsafe(self._notify)

    def _finish(self, outcome: LoadedModel | PagewireError) -> None:
        self._outcome = outcome
        self._notify()

    def _notify(self) -> None:
        """Wake all watchers; each finds a fresh event for the change after this one."""
        self._changed.set()
        self._changed = asyncio.Event()


def _tokenizer_fingerprint(config: EngineConfig) -> str:
    """The vocabulary's fingerprint; empty, which equals no tokenizer's, for a model without one.

    Raises:
        ValueError: The tokenizer that the configuration names cannot be used.
    """
    own = _fingerprint_of_own_tokenizer(config)
    if config.model.tokenizer is None:
        if not own:
            log.warning("no_tokenizer_fingerprint", hint="name a tokenizer with --tokenizer")
        return own
    named = resolve_tokenizer(config.model.tokenizer, config.load.revision)
    fingerprint = fingerprint_of_model(named.path)
    if own and own != fingerprint:
        log.warning("tokenizer_is_not_the_models", tokenizer=config.model.tokenizer)
    return fingerprint


def _fingerprint_of_own_tokenizer(config: EngineConfig) -> str:
    source = resolve_model(config.model.model, config.load.revision)
    try:
        return fingerprint_of_model(source.path)
    except ValueError as error:
        log.info("model_has_no_tokenizer", error=str(error))
        return ""


def _ended() -> PagewireError:
    return ServiceUnavailableError("the load was ended before it was done", reason="LOAD_CANCELLED")


def to_load_error(error: Exception) -> PagewireError:
    """What the scheduler is told of a load that failed."""
    if isinstance(error, PagewireError):
        return error
    if isinstance(error, _LoadCancelledError):
        return _ended()
    if isinstance(error, MemoryError):
        message = (
            "the model does not fit into the worker's memory: set --max-num-batched-tokens or "
            "--max-num-seqs lower, or --dtype bfloat16, or use a worker with more memory"
        )
        return FailedPreconditionError(message, reason="OUT_OF_MEMORY")
    if isinstance(error, ValueError):
        text = ": ".join(str(part) for part in error.args)
        return InvalidRequestError(f"the model cannot be loaded: {text}", reason=LOAD_FAILED)
    message = "the model cannot be loaded; the worker's log says why"
    return InternalError(message, reason=LOAD_FAILED)
