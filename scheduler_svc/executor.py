"""The seam between the engine and whatever executes its steps.

`engine_core` knows an `Executor` and nothing of gRPC, addresses or leases; `worker_client` has the
real one, tests have their own. An executor belongs to one event loop and one engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pagewire.v1 import common_pb2
from scheduler_svc.kv_cache_groups import ONE_FULL_GROUP, KvCacheGroups
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput


class WorkerUnavailableError(Exception):
    """No worker can be claimed now; another try may succeed."""


class WorkerLostError(Exception):
    """The worker is gone, and the KV with it."""


class StepFailedError(Exception):
    """The step failed as a whole, the worker lives; its KV can't be trusted any more."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker found when it loaded the model."""

    vocab_size: int
    max_position_embeddings: int
    """Longest sequence that the model was made for, in tokens."""
    eos_token_ids: frozenset[int]
    available_kv_cache_bytes: int
    bytes_per_block: int
    weights_digest: str
    dtype: str
    sampler_version: str
    model_info: common_pb2.ModelInfo
    """Passed on to gateways unread."""
    kv_cache_groups: KvCacheGroups = ONE_FULL_GROUP
    """Layers with block tables of their own, in the order that steps have their blocks in."""


@dataclass(frozen=True, slots=True)
class KvCachePlan:
    """What the engine decided from the facts."""

    num_blocks: int
    """Null block included."""
    block_size: int
    """In tokens."""
    max_model_len: int
    num_groups: int = 1
    """KV cache groups: so many block tables a request has."""


@dataclass(frozen=True, slots=True)
class WorkerPulse:
    """What the heartbeats of a worker tell."""

    address: str
    rank: int
    round_trip_ns: int
    """0: not known yet."""
    process: common_pb2.ProcessFigures
    """Passed on to gateways unread."""


class Executor(ABC):
    """A worker, or several that act as one, that loads a model and runs steps in order."""

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] = _do_nothing
        """Called on the event loop when `lost_reason` is set, also while no step runs."""
        self.num_stages = 1
        """Steps that can run at the same time, one behind the other."""

    @property
    @abstractmethod
    def lost_reason(self) -> str | None:
        """Why the worker counts as lost; None while it is there."""

    def pulses(self) -> Sequence[WorkerPulse]:
        """What the workers' heartbeats told last, by rank; those that told nothing are left out."""
        return ()

    @abstractmethod
    async def initialize(self) -> WorkerFacts:
        """Claim a worker and have it load the model; ends any claim from before.

        Raises:
            WorkerUnavailableError: Try again later.
            PagewireError: The worker refused the configuration; trying again is no use.
        """

    @abstractmethod
    async def allocate_kv_cache(self, plan: KvCachePlan) -> None:
        """Allocate and get ready for steps; the worker knows no requests afterwards.

        Raises:
            WorkerUnavailableError: Try again from `initialize`.
            PagewireError: It does not fit.
        """

    @abstractmethod
    async def send(self, output: SchedulerOutput) -> None:
        """Send a step, which runs after those sent before; does not wait until it runs.

        Raises:
            WorkerLostError: The worker is gone.
        """

    @abstractmethod
    async def send_masks(self, output: SchedulerOutput, masks: Mapping[int, bytes]) -> None:
        """Send the grammar masks of a step that was sent; once for each step with masked rows.

        Args:
            output: The step.
            masks: By masked row: one bitmask and one more a draft, each ceil(vocab_size / 8) bytes.
                A row without one has ended meanwhile.

        Raises:
            WorkerLostError: The worker is gone.
        """

    @abstractmethod
    async def receive(self) -> ModelRunnerOutput:
        """Wait for the answer to the oldest step that has none; one is sent at least.

        An answer that came before the worker was lost is still received.

        Raises:
            WorkerLostError: The worker is gone, and every step without an answer with it.
            StepFailedError: The worker could not run this step.
        """

    @abstractmethod
    async def sleep(self, level: int) -> None:
        """Free the worker's memory; it knows no request, and gets no step before `wake_up`.

        Args:
            level: 1: weights go to host memory, KV is dropped. 2: both are dropped.

        Raises:
            WorkerUnavailableError: There is no worker, or it is lost.
            PagewireError: It refused.
        """

    @abstractmethod
    async def wake_up(self, tags: Collection[str]) -> bool:
        """End a sleep, or a part of it; the KV cache is as large as it was, and empty.

        Args:
            tags: `weights`, `kv_cache`; empty: both.

        Returns:
            Whether something still sleeps.

        Raises:
            WorkerUnavailableError: There is no worker, or it is lost.
            PagewireError: It refused: the sleep goes on.
        """

    @abstractmethod
    async def close(self) -> None:
        """Give the worker back; idempotent."""


def _do_nothing() -> None:
    return None
