"""What an engine is, once its first worker is loaded: facts, sizes, fingerprint, limits.

Pure functions of the configuration and the worker's facts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import FailedPreconditionError
from scheduler_svc.executor import KvCachePlan, WorkerFacts
from scheduler_svc.limits import SchedulerLimits


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine serves, known once the first worker is loaded."""

    facts: WorkerFacts
    kv_cache: KvCachePlan
    fingerprint: str


def make_limits(config: EngineConfig, facts: WorkerFacts, plan: KvCachePlan) -> SchedulerLimits:
    """The numbers that the scheduler goes by."""
    scheduler, cache = config.scheduler, config.cache
    try:
        return SchedulerLimits(
            max_model_len=plan.max_model_len,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_num_seqs=scheduler.max_num_seqs,
            block_size=plan.block_size,
            num_blocks=plan.num_blocks,
            vocab_size=facts.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            enable_prefix_caching=cache.enable_prefix_caching,
            enable_chunked_prefill=scheduler.enable_chunked_prefill,
            long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
            reserve_full_isl=scheduler.scheduler_reserve_full_isl,
            watermark=scheduler.watermark,
            max_num_queued_requests=scheduler.max_num_queued_requests,
            max_num_queued_tokens=scheduler.max_num_queued_tokens,
            policy=scheduler.scheduling_policy,
            kv_cache_groups=facts.kv_cache_groups,
            max_logprobs=config.model.max_logprobs,
            num_stages=config.parallel.pipeline_parallel_size,
        )
    except ValueError as error:
        raise FailedPreconditionError(str(error), reason="INVALID_ENGINE_CONFIG") from error


def engine_fingerprint(facts: WorkerFacts) -> str:
    """SHA-256 (hex) over what decides which tokens an engine gives."""
    parts = (facts.weights_digest, facts.dtype, facts.sampler_version, str(facts.vocab_size))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
