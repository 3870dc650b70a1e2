"""What the engine serves and how it does, as messages: `GetEngineInfo` and `WatchLoad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagewire.kit.histogram import Histogram
from pagewire.v1 import scheduler_pb2
from scheduler_svc.convert.outputs import set_timings
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_info import EngineInfo
from scheduler_svc.engine_state import EngineState
from scheduler_svc.pause import PauseState
from scheduler_svc.step_figures import SchedulerStats


def engine_info(
    info: EngineInfo,
    scheduler_id: str,
    epoch: int,
    *,
    names: Sequence[str],
    max_num_seqs: int,
    max_logprobs: int,
    cache_config: Mapping[str, str],
) -> scheduler_pb2.GetEngineInfoResponse:
    return scheduler_pb2.GetEngineInfoResponse(
        scheduler_id=scheduler_id,
        epoch=epoch,
        served_model_names=names,
        model_info=info.facts.model_info,
        max_model_len=info.kv_cache.max_model_len,
        block_size=info.kv_cache.block_size,
        num_gpu_blocks=info.kv_cache.num_blocks,
        engine_fingerprint=info.fingerprint,
        max_logprobs=max_logprobs,
        max_num_seqs=max_num_seqs,
        cache_config=cache_config,
    )


def load_message(core: EngineCore) -> scheduler_pb2.WatchLoadResponse:
    stats, counters = core.make_stats(), core.counters
    message = scheduler_pb2.WatchLoadResponse(
        num_steps=counters.num_steps,
        generation_tokens=counters.generation_tokens,
        ready=core.state is EngineState.READY,
    )
    if stats is not None:
        message.num_requests_running = stats.num_requests_running
        message.num_requests_waiting = stats.num_requests_waiting
        message.num_tokens_waiting = stats.num_tokens_waiting
        message.kv_cache_usage = stats.kv_cache_usage
        message.num_preemptions = stats.num_preemptions
        message.prefix_cache_queries = stats.prefix_cache_queries
        message.prefix_cache_hits = stats.prefix_cache_hits
        _set_figures(message.figures, core, stats)
    return message


def _set_figures(
    message: scheduler_pb2.EngineFigures, core: EngineCore, stats: SchedulerStats
) -> None:
    counters = core.counters
    message.paused = core.pause_state is not PauseState.UNPAUSED
    message.sleep_level = core.sleep.level
    message.num_requests_deferred = stats.num_requests_deferred
    message.prompt_tokens = counters.prompt_tokens
    message.worker_idle_ns = counters.worker_idle_ns
    message.num_workers_lost = counters.num_workers_lost
    message.num_stalls = core.liveness.num_stalls
    message.num_drafts = stats.num_drafts
    message.num_draft_tokens = stats.num_draft_tokens
    message.num_accepted_tokens = stats.num_accepted_tokens
    message.num_accepted_tokens_per_pos.extend(stats.num_accepted_tokens_per_pos)
    _set_histogram(message.iteration_tokens, counters.iteration_tokens)
    if (lives := core.block_lives) is not None:
        _set_histogram(message.kv_block_lifetime, lives.lifetime)
        _set_histogram(message.kv_block_idle_before_evict, lives.idle_before_evict)
        _set_histogram(message.kv_block_reuse_gap, lives.reuse_gap)
    message.max_num_seqs = core.config.scheduler.max_num_seqs
    set_timings(message.steps, counters.steps, since_ns=0)
    for pulse in core.worker_pulses():
        message.workers.add(
            address=pulse.address,
            rank=pulse.rank,
            round_trip_ns=pulse.round_trip_ns,
            process=pulse.process,
        )


def _set_histogram(message: scheduler_pb2.HistogramFigures, histogram: Histogram) -> None:
    message.counts.extend(histogram.counts)
    message.sum = histogram.sum
