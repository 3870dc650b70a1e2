"""Plain numbers by name, of what processes and engines tell of themselves."""

from __future__ import annotations

from pagewire.kit.pulse import ProcessFigures
from pagewire.v1.scheduler_pb2 import WatchLoadResponse

# Of StepTimings: durations of steps, which grow.
STEP_PARTS = ("schedule", "execute", "prepare", "forward", "sample", "queue", "busy")


def process_values(process: ProcessFigures | None) -> dict[str, float]:
    """Return a process's figures; what is not known is left out."""
    if process is None:
        return {}
    values = {
        "cpu_ns": float(process.cpu_ns),
        "uptime_ns": float(process.uptime_ns),
        "rss_bytes": float(process.rss_bytes),
        "num_cpus": float(process.num_cpus),
        "lag_max_ns": float(process.loop_lag_max_ns),
        "lag_mean_ns": float(process.loop_lag_mean_ns),
        "rpcs": float(process.num_rpcs),
    }
    if process.HasField("run_queue_wait_ns"):
        values["wait_ns"] = float(process.run_queue_wait_ns)
    if process.num_work_threads:
        values["work_threads"] = float(process.num_work_threads)
        values["work_ns"] = float(process.work_ns)
        values["work_items"] = float(process.num_work_items)
    return values


def engine_values(load: WatchLoadResponse) -> dict[str, float]:
    """Return an engine's figures."""
    figures, steps = load.figures, load.figures.steps
    return {
        "running": float(load.num_requests_running),
        "waiting": float(load.num_requests_waiting),
        "deferred": float(figures.num_requests_deferred),
        "for_room": float(load.num_requests_waiting - figures.num_requests_deferred),
        "tokens_waiting": float(load.num_tokens_waiting),
        "max_num_seqs": float(figures.max_num_seqs),
        "kv_usage": load.kv_cache_usage,
        "preemptions": float(load.num_preemptions),
        "cache_queries": float(load.prefix_cache_queries),
        "cache_hits": float(load.prefix_cache_hits),
        "steps": float(load.num_steps),
        "generation_tokens": float(load.generation_tokens),
        "prompt_tokens": float(figures.prompt_tokens),
        "starved_ns": float(figures.worker_idle_ns),
        **{f"{part}_ns": float(getattr(steps, f"{part}_ns")) for part in STEP_PARTS},
    }
