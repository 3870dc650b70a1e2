"""The engine's outputs and figures as messages of `VllmEngine`.

With `parameters` the only file of this folder that knows the messages' fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice

from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from pagewire.engine_config import EngineConfig
from pagewire.v1 import common_pb2 as pagewire_pb2
from scheduler_svc.direct_client import DirectOutput
from scheduler_svc.engine_info import EngineInfo
from scheduler_svc.kv_events import KvEventBatch
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.step_figures import SchedulerStats
from scheduler_svc.vllm_engine.choice import Choice

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not."""

_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_MAX_INT32 = 2**31 - 1


def chunk(choice: Choice, output: DirectOutput) -> vllm_engine_pb2.GenerateResponse:
    """Build what is new of one output; counts of output tokens are of this chunk alone."""
    message = vllm_engine_pb2.GenerateStreamChunk(
        token_ids=output.token_ids,
        prompt_tokens=len(choice.request.prompt_token_ids),
        completion_tokens=len(output.token_ids),
        cached_tokens=choice.num_cached_tokens,
        index=choice.index,
    )
    if output.logprobs is not None:
        _set_output_logprobs(message.output_logprobs, output.token_ids, output.logprobs)
    if output.prompt_logprobs is not None:
        _set_input_logprobs(message.input_logprobs, choice, output.prompt_logprobs)
    return vllm_engine_pb2.GenerateResponse(chunk=message)


def complete(choice: Choice, stop: Sequence[str]) -> vllm_engine_pb2.GenerateResponse:
    """Build the end of one output, with all its tokens and the logprobs that it kept.

    Args:
        choice: An output that has ended.
        stop: The stop strings asked for.
    """
    end = choice.end
    if end is None:
        raise ValueError("the output has not ended")
    message = vllm_engine_pb2.GenerateComplete(
        output_ids=choice.token_ids,
        finish_reason=end.reason.value,
        prompt_tokens=len(choice.request.prompt_token_ids),
        completion_tokens=len(choice.token_ids),
        cached_tokens=choice.num_cached_tokens,
        index=choice.index,
    )
    if choice.matched_stop is not None:
        message.matched_stop_str = stop[choice.matched_stop]
    elif end.stop_token_id is not None:
        message.matched_token_id = end.stop_token_id
    if choice.logprobs is not None:
        _set_output_logprobs(message.output_logprobs, choice.token_ids, choice.logprobs)
    if choice.prompt_logprobs is not None:
        _set_input_logprobs(message.input_logprobs, choice, choice.prompt_logprobs)
    return vllm_engine_pb2.GenerateResponse(complete=message)


def model_info(config: EngineConfig, info: EngineInfo) -> vllm_engine_pb2.GetModelInfoResponse:
    """Build what a caller must know of the model; it asks `GetTokenizer` for the tokenizer."""
    model, max_model_len = info.facts.model_info, info.kv_cache.max_model_len
    return vllm_engine_pb2.GetModelInfoResponse(
        model_path=config.model.model,
        is_generation=True,
        max_context_length=max_model_len,
        vocab_size=model.vocab_size,
        served_model_name=config.served_model_names[0],
        architectures=[model.architecture],
        eos_token_ids=sorted(info.facts.eos_token_ids),
        max_req_input_len=max_model_len - 1,
        default_sampling_params_json=_sampling_defaults(model.default_sampling_params),
    )


def server_info(
    config: EngineConfig,
    info: EngineInfo,
    stats: SchedulerStats | None,
    *,
    is_paused: bool,
    uptime_s: float,
    last_receive_time_s: float,
) -> vllm_engine_pb2.GetServerInfoResponse:
    """Build what a caller may know of this process."""
    num_active = 0 if stats is None else stats.num_requests_running + stats.num_requests_waiting
    return vllm_engine_pb2.GetServerInfoResponse(
        active_requests=num_active,
        is_paused=is_paused,
        last_receive_timestamp=last_receive_time_s,
        uptime_seconds=uptime_s,
        server_type="vllm-grpc",
        data_parallel_size=1,
        block_size=info.kv_cache.block_size,
        model_dtype=info.facts.dtype,
        max_num_seqs=config.scheduler.max_num_seqs,
        constrained_decoding_start="first_token",
    )


def scheduler_load(
    stats: SchedulerStats, *, block_size: int, max_num_seqs: int
) -> vllm_engine_pb2.SchedulerLoad:
    """Build the figures of the one rank."""
    num_usable = stats.num_blocks - 1
    return vllm_engine_pb2.SchedulerLoad(
        num_running_reqs=stats.num_requests_running,
        num_waiting_reqs=stats.num_requests_waiting,
        num_total_reqs=stats.num_requests_running + stats.num_requests_waiting,
        num_used_tokens=_int32(round(stats.kv_cache_usage * num_usable) * block_size),
        max_total_num_tokens=_int32(num_usable * block_size),
        token_usage=stats.kv_cache_usage,
        cache_hit_rate=stats.prefix_cache_hits / max(stats.prefix_cache_queries, 1),
        utilization=stats.num_requests_running / max_num_seqs,
        max_running_requests=max_num_seqs,
        num_waiting_uncached_tokens=_int32(stats.num_tokens_waiting),
    )


def kv_event_batch(batch: KvEventBatch, block_size: int, time_s: float) -> common_pb2.KvEventBatch:
    """Build one step's changes of the prefix cache, in the order in which to apply them.

    A hash of 64 bits stands for ours of 256.
    """
    message = common_pb2.KvEventBatch(sequence_number=batch.sequence, timestamp=time_s, dp_rank=0)
    if batch.all_cleared:
        message.events.add().cleared.SetInParent()
    if batch.removed_hashes:
        message.events.add().removed.block_hashes.extend(map(_short_hash, batch.removed_hashes))
    for group in batch.stored:
        stored = message.events.add().stored
        if group.parent_hash is not None:
            stored.parent_block_hash = _short_hash(group.parent_hash)
        token_ids = iter(group.token_ids)
        for block_hash in group.hashes:
            stored.blocks.add(
                block_hash=_short_hash(block_hash),
                token_ids=islice(token_ids, block_size),
                block_size=block_size,
            )
    return message


def kv_events_lost(next_sequence: int, time_s: float) -> common_pb2.KvEventBatch:
    """Build the word that nothing known before counts; `next_sequence` comes next."""
    return kv_event_batch(KvEventBatch(next_sequence - 1, all_cleared=True), 0, time_s)


def _set_output_logprobs(
    message: vllm_engine_pb2.OutputLogProbs, token_ids: Sequence[int], rows: LogprobRows
) -> None:
    message.token_logprobs.extend(map(_finite, rows.logprobs))
    message.token_ids.extend(token_ids)
    if any(rows.top_counts):
        message.top_logprobs.extend(_top_logprobs(rows))


def _set_input_logprobs(
    message: vllm_engine_pb2.InputLogProbs, choice: Choice, rows: LogprobRows
) -> None:
    """Nothing comes before the first token, so it has no logprob and no candidates."""
    message.token_logprobs.add()
    message.token_logprobs.extend(
        vllm_engine_pb2.InputTokenLogProb(value=_finite(value)) for value in rows.logprobs
    )
    message.token_ids.extend(choice.request.prompt_token_ids)
    if any(rows.top_counts):
        message.top_logprobs.add()
        message.top_logprobs.extend(_top_logprobs(rows))


def _top_logprobs(rows: LogprobRows) -> list[vllm_engine_pb2.TopLogProbs]:
    """The candidates of each row."""
    token_ids, values = iter(rows.top_token_ids), map(_finite, rows.top_logprobs)
    return [
        vllm_engine_pb2.TopLogProbs(
            values=islice(values, num_top), token_ids=islice(token_ids, num_top)
        )
        for num_top in rows.top_counts
    ]


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)


def _sampling_defaults(params: pagewire_pb2.SamplingParams) -> str:
    """The model's own defaults as JSON; empty if it has none."""
    present = {descriptor.name for descriptor, _ in params.ListFields()}
    # A float32 as the shortest decimal that gives it back.
    values = {
        name: float(f"{getattr(params, name):.7g}") if name != "top_k" else params.top_k
        for name in _SAMPLING_DEFAULTS
        if name in present
    }
    return json.dumps(values) if values else ""


def _short_hash(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[:8], "big", signed=True)


def _int32(value: int) -> int:
    return min(value, _MAX_INT32)
