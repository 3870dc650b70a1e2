"""What crosses between the servicer and the worker: plain records of calls and answers.

`convert` builds and reads them; they know no protobuf. Their checks need no state of the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import InvalidRequestError
from worker_svc.lease import Lease
from worker_svc.memory import MIN_BLOCKS
from worker_svc.model_load import LoadedModel
from worker_svc.parallel.layout import RankLayout
from worker_svc.runners import RunnerDescription


class WorkerState(Enum):
    """What the worker is doing as a whole."""

    BLANK = "blank"
    INITIALIZING = "initializing"
    LOADED = "loaded"
    READY = "ready"
    SLEEPING = "sleeping"


@dataclass(frozen=True, slots=True)
class InitializeCall:
    """What a scheduler asks for."""

    scheduler_id: str
    epoch: int
    config: EngineConfig
    config_digest: str
    rank: int
    world_size: int
    group_generation: int
    rendezvous: str = ""
    """Where the ranks meet, for all but rank 0."""

    @property
    def layout(self) -> RankLayout:
        parallel = self.config.parallel
        return RankLayout(self.rank, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)

    @property
    def model_digest(self) -> str:
        """Equal for calls that want the same weights on this worker."""
        if self.world_size == 1:
            return self.config_digest
        return f"{self.config_digest}/{self.rank}"


@dataclass(frozen=True, slots=True)
class RendezvousOpened:
    """Rank 0 waits for the others."""

    rendezvous: str


@dataclass(frozen=True, slots=True)
class InitializeResult:
    """What a scheduler gets."""

    lease: Lease
    model: LoadedModel
    description: RunnerDescription
    available_kv_cache_bytes: int
    worker_epoch: int
    reused_weights: bool


@dataclass(frozen=True, slots=True)
class KvCacheCall:
    """The KV cache that a scheduler asks for."""

    lease: Lease
    num_blocks: int
    block_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """For GetStatus."""

    worker_epoch: int
    state: WorkerState
    lease_holder: str
    config_digest: str
    num_requests: int


def check_initialize_call(call: InitializeCall) -> None:
    """Refuse what no state of the worker could make right.

    Raises:
        PagewireError: Names the field.
    """
    if not call.config_digest:
        message = "config_digest must not be empty"
        raise InvalidRequestError(message, reason="INVALID_CONFIG", field="config_digest")
    world_size = call.config.parallel.world_size
    if call.world_size != world_size or not 0 <= call.rank < world_size:
        message = f"rank {call.rank} of {call.world_size}: the configuration has {world_size} ranks"
        raise InvalidRequestError(message, reason="INVALID_RANK", field="rank")
    if bool(call.rank) != bool(call.rendezvous):
        message = "rendezvous is what rank 0 says to all the others"
        raise InvalidRequestError(message, reason="INVALID_RENDEZVOUS", field="rendezvous")


def check_kv_cache_call(call: KvCacheCall, model: LoadedModel) -> None:
    """Refuse a KV cache that the model cannot have.

    Raises:
        InvalidRequestError: Names the field.
    """
    rules = (
        ("num_blocks", call.num_blocks >= MIN_BLOCKS, f"must be at least {MIN_BLOCKS}"),
        (
            "block_size",
            call.block_size == model.config.cache.block_size,
            f"must be that of the configuration ({model.config.cache.block_size})",
        ),
        (
            "max_model_len",
            1 <= call.max_model_len <= model.info.max_model_len,
            f"must be 1 to the model's limit ({model.info.max_model_len})",
        ),
    )
    for field, ok, rule in rules:
        if not ok:
            raise InvalidRequestError(f"{field} {rule}", reason="INVALID_KV_CACHE", field=field)
