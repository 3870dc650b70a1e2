"""What of a worker sleeps, and how it comes back: its KV cache, and its weights.

Owns the levels and tags of a sleep. Level 1 drops the KV cache and moves weights to host memory,
where a CPU has them already; level 2 drops both. Knows no lease and no stream: the worker decides
who may call, and when. On the event loop; what takes time is handed to the device thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from pagewire.kit.errors import FailedPreconditionError, InvalidRequestError
from pagewire.kit.logs import get_logger
from worker_svc.cpu_memory import release_free_memory
from worker_svc.device_thread import DeviceThread
from worker_svc.model_load import LoadedModel, to_load_error

WEIGHTS, KV_CACHE = "weights", "kv_cache"
TAGS = frozenset((WEIGHTS, KV_CACHE))
LEVELS = (1, 2)

log = get_logger("worker_svc.sleep")


class WorkerSleep:
    """One worker's sleep. Everything is awake at first."""

    def __init__(self, device: DeviceThread) -> None:
        self._device = device
        self._level = 0
        self._asleep: frozenset[str] = frozenset()

    @property
    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    @property
    def has_dropped_weights(self) -> bool:
        """The weights are nowhere in memory."""
        return self._level == 2 and WEIGHTS in self._asleep

    async def fall_asleep(self, model: LoadedModel, level: int) -> None:
        """Free memory; nothing happens where the sleep is as deep already.

        Raises:
            InvalidRequestError: There is no such level.
        """
        if level not in LEVELS:
            message = f"level must be 1 or 2, not {level}"
            raise InvalidRequestError(message, reason="INVALID_SLEEP_LEVEL", field="level")
        if level <= self._level:
            return
        # Before the device is done: whoever comes meanwhile must know.
        self._level, self._asleep = level, TAGS
        await self._device.run(lambda: _fall_asleep(model, level))
        log.info("sleeping", level=level)

    async def wake_up(
        self, model: LoadedModel, tags: Collection[str], allocate: Callable[[], None]
    ) -> None:
        """Bring parts back; what is awake stays as it is. What fails goes on sleeping.

        Args:
            model: The one that fell asleep.
            tags: Which parts; empty: all.
            allocate: Makes the KV cache anew; called on the device thread.

        Raises:
            PagewireError: There is no such tag, the KV cache was to wake before the weights, there
                is too little memory, or the weights are not what they were.
        """
        wanted = check_tags(tags) & self._asleep
        if WEIGHTS in self._asleep - wanted and KV_CACHE in wanted:
            message = "the KV cache wakes after the weights: wake the tag weights first"
            raise FailedPreconditionError(message, reason="WEIGHTS_SLEEP")
        if WEIGHTS in wanted:
            await self.wake_weights(model)
        if KV_CACHE in wanted:
            await self._device.run(allocate)
            self._awake(KV_CACHE)
        log.info("woken", asleep=sorted(self._asleep))

    async def wake_weights(self, model: LoadedModel) -> None:
        """Bring the weights back; nothing happens if they are awake.

        Raises:
            PagewireError: They cannot be loaded, or are not what they were.
        """
        if WEIGHTS in self._asleep:
            await self._device.run(lambda: _wake_weights(model))
            self._awake(WEIGHTS)

    def forget(self) -> None:
        """There is another model, or none: nothing sleeps."""
        self._level, self._asleep = 0, frozenset()

    def _awake(self, tag: str) -> None:
        self._asleep -= {tag}
        # With its weights awake a worker sleeps as at level 1.
        self._level = min(self._level, len(self._asleep))


def check_tags(tags: Collection[str]) -> frozenset[str]:
    """Read the tags of a call; none means all.

    Raises:
        InvalidRequestError: One is not known.
    """
    unknown = sorted(set(tags) - TAGS)
    if unknown:
        message = f"tag {unknown[0]!r} is not one of {', '.join(sorted(TAGS))}"
        raise InvalidRequestError(message, reason="INVALID_SLEEP_TAG", field="tags")
    return frozenset(tags) or TAGS


def _fall_asleep(model: LoadedModel, level: int) -> None:
    """Runs on the device thread."""
    model.runner.sleep(level)
    release_free_memory()


def _wake_weights(model: LoadedModel) -> None:
    """Runs on the device thread."""
    try:
        info = model.runner.wake_weights(_ignore_progress)
    except Exception as error:
        raise to_load_error(error) from error
    if info.weights_digest != model.info.weights_digest:
        _fall_asleep(model, level=2)
        message = "the checkpoint is not what it was before the sleep: restart the engine"
        raise FailedPreconditionError(message, reason="WEIGHTS_CHANGED")


def _ignore_progress(stage: str, fraction: float) -> None:
    """Nobody watches a wake-up."""
