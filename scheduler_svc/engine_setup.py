"""What an engine is made of: before its first worker is there, and once its facts are known."""

from __future__ import annotations

from pagewire.engine_config import EngineConfig
from pagewire.kit.logs import get_logger
from scheduler_svc.block_lives import BlockLives
from scheduler_svc.drafter import make_drafter
from scheduler_svc.engine_info import EngineInfo, engine_fingerprint, make_limits
from scheduler_svc.executor import WorkerFacts, WorkerUnavailableError
from scheduler_svc.kv_events import KvEventLog
from scheduler_svc.kv_sizing import plan_kv_cache
from scheduler_svc.scheduler import Scheduler

# The name that these lines have always had.
log = get_logger("scheduler_svc.engine_core")


def make_kv_events(config: EngineConfig) -> KvEventLog | None:
    """Return the log of KV events; None if there are to be none."""
    num_batches = config.observability.kv_events_buffer
    return KvEventLog(num_batches) if num_batches and config.cache.enable_prefix_caching else None


def make_block_lives(config: EngineConfig) -> BlockLives | None:
    """Return whoever follows a sample of KV blocks; None if nobody is to."""
    observed = config.observability
    return BlockLives(observed.kv_cache_metrics_sample) if observed.kv_cache_metrics else None


def make_scheduler(
    config: EngineConfig,
    facts: WorkerFacts,
    kv_events: KvEventLog | None,
    block_lives: BlockLives | None,
) -> tuple[EngineInfo, Scheduler]:
    """Size the engine by its first worker.

    Raises:
        PagewireError: The configuration does not fit it.
    """
    plan = plan_kv_cache(config, facts)
    info = EngineInfo(facts, plan, engine_fingerprint(facts))
    limits = make_limits(config, facts, plan)
    scheduler = Scheduler(limits, kv_events, make_drafter(config.speculative), block_lives)
    log.info(
        "kv_cache_sized",
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        max_model_len=plan.max_model_len,
        engine_fingerprint=info.fingerprint,
    )
    return info, scheduler


def check_same_engine(info: EngineInfo, facts: WorkerFacts) -> None:
    """Hold a later worker to what the first one was.

    Raises:
        WorkerUnavailableError: It would give other tokens.
    """
    if engine_fingerprint(facts) != info.fingerprint:
        raise WorkerUnavailableError(
            "its tokens would be others than those of the engine's first worker: give it the"
            " same checkpoint, and CPU kernels where that one has them"
        )
