"""What crosses between the servicer and the worker: plain records of calls and answers.

`convert` builds and reads them; they know no protobuf and do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pagewire.engine_config import EngineConfig
from worker_svc.lease import Lease
from worker_svc.model_load import LoadedModel
from worker_svc.runners import RunnerDescription


class WorkerState(Enum):
    """What the worker is doing as a whole."""

    BLANK = "blank"
    INITIALIZING = "initializing"
    LOADED = "loaded"
    READY = "ready"


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
