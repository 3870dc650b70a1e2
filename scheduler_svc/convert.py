"""Messages of `SchedulerService` to and from the engine's own types.

With `worker_messages` the only file that builds or reads protobuf. It holds no state but the frame
that is being put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pagewire import wire
from pagewire.kit.errors import InvalidRequestError, PagewireError
from pagewire.kit.histogram import Histogram
from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc.direct_client import DirectOutput
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_info import EngineInfo
from scheduler_svc.engine_state import EngineState
from scheduler_svc.kv_events import KvEventBatch
from scheduler_svc.output import (
    EngineCoreOutputs,
    FinishedRequest,
    LogprobRows,
    SchedulerStats,
    StepTimings,
)
from scheduler_svc.pause import PauseMode, PauseState
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.scheduler import ABORTED
from scheduler_svc.stop import FinishReason, Stop

_FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
}
_PAUSE_MODES: dict[int, PauseMode] = {
    scheduler_pb2.PAUSE_MODE_ABORT: PauseMode.ABORT,
    scheduler_pb2.PAUSE_MODE_WAIT: PauseMode.WAIT,
    scheduler_pb2.PAUSE_MODE_KEEP: PauseMode.KEEP,
}
_STOPPED = Stop(FinishReason.STOP)
# About half a megabyte.
_HASHES_A_MESSAGE = 16384


def core_request(add: scheduler_pb2.EngineAdd, client_id: int) -> EngineCoreRequest:
    """Read one add of a gateway.

    Raises:
        InvalidRequestError: A value is out of its bounds.
    """
    if not add.request_id:
        raise InvalidRequestError("request_id is empty", field="request_id")
    return EngineCoreRequest(
        request_id=add.request_id,
        prompt_token_ids=list(add.prompt_token_ids),
        sampling_params=wire.sampling_params_from_proto(add.sampling_params).normalized(),
        arrival_time_s=add.arrival_time_ns / 1e9,
        client_id=client_id,
        output_token_ids=list(add.output_token_ids),
        is_resumed=add.resumed,
        priority=add.priority,
        cache_salt=add.cache_salt or None,
        lora_digest=add.lora_digest or None,
        num_suspicions=add.suspicions,
        traceparent=add.traceparent,
    )


def core_request_of_generate(
    request: scheduler_pb2.SchedulerServiceGenerateRequest,
    request_id: str,
    client_id: int,
    arrival_time_s: float,
) -> EngineCoreRequest:
    """Read the request of a direct client.

    Raises:
        InvalidRequestError: A value is out of its bounds.
    """
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(request.prompt_token_ids),
        sampling_params=wire.sampling_params_from_proto(request.sampling_params).normalized(),
        arrival_time_s=arrival_time_s,
        client_id=client_id,
        priority=request.priority,
        cache_salt=request.cache_salt or None,
    )


def abort_stop(reason: int) -> Stop:
    """What an abort counts as: a stop string ends an output like a stop token does."""
    return _STOPPED if reason == common_pb2.ABORT_REASON_STOP_STRING else ABORTED


def end_attributes(end: FinishedRequest) -> dict[str, str | int | float | bool]:
    """Return what a span says of the end of a request, under vLLM's names where it has any."""
    return {
        "gen_ai.usage.prompt_tokens": end.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": end.num_output_tokens,
        "cached_tokens": end.num_cached_tokens,
        "finish_reason": end.reason.value,
    }


def pause_mode(mode: int) -> PauseMode:
    """Read the mode of a pause.

    Raises:
        InvalidRequestError: None is given, or one of a later version.
    """
    if mode not in _PAUSE_MODES:
        names = ", ".join(item.value for item in PauseMode)
        raise InvalidRequestError(f"mode: must be one of {names}", field="mode")
    return _PAUSE_MODES[mode]


def sleep_mode(mode: int) -> PauseMode:
    """Read the mode of a sleep's pause; without one requests end, as in vLLM.

    Raises:
        InvalidRequestError: It is one of a later version.
    """
    return pause_mode(mode or scheduler_pb2.PAUSE_MODE_ABORT)


def request_error(handle: int, error: PagewireError) -> scheduler_pb2.RequestError:
    """Build a refusal, or an error after admission."""
    code: int = error.code.value[0]  # type: ignore[index, unused-ignore]
    return scheduler_pb2.RequestError(
        handle=handle,
        code=code,
        reason=error.reason,
        message=error.message,
        retry_after_ms=round((error.retry_after_s or 0.0) * 1000),
        field=error.field or "",
    )


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


def load(core: EngineCore) -> scheduler_pb2.WatchLoadResponse:
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
    _set_timings(message.steps, counters.steps, since_ns=0)
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


def kv_event_batch(
    batch: KvEventBatch, block_size: int, *, hashes_only: bool = False
) -> scheduler_pb2.SubscribeKvEventsResponse:
    message = scheduler_pb2.SubscribeKvEventsResponse(
        sequence=batch.sequence,
        removed_hashes=batch.removed_hashes,
        all_cleared=batch.all_cleared,
    )
    for stored in batch.stored:
        message.stored.add(
            parent_hash=stored.parent_hash or b"",
            hashes=stored.hashes,
            token_ids=() if hashes_only else stored.token_ids,
            block_size=block_size,
        )
    return message


def kv_snapshot(
    hashes: Sequence[bytes], through_sequence: int
) -> Iterator[scheduler_pb2.SubscribeKvEventsResponse]:
    """Build the parts of a snapshot, of a bounded size each; at least one."""
    starts = range(0, max(len(hashes), 1), _HASHES_A_MESSAGE)
    for start in starts:
        yield scheduler_pb2.SubscribeKvEventsResponse(
            snapshot=scheduler_pb2.KvSnapshot(
                through_sequence=through_sequence,
                hashes=hashes[start : start + _HASHES_A_MESSAGE],
                is_last=start == starts[-1],
            )
        )


def heartbeat_of_kv_events(number: int) -> scheduler_pb2.SubscribeKvEventsResponse:
    return scheduler_pb2.SubscribeKvEventsResponse(heartbeat=common_pb2.Heartbeat(sequence=number))


def generate_response(output: DirectOutput) -> scheduler_pb2.SchedulerServiceGenerateResponse:
    """Build one message to a direct client; the last one has the end and the usage."""
    message = scheduler_pb2.SchedulerServiceGenerateResponse(token_ids=output.token_ids)
    if output.logprobs is not None:
        _add_logprobs(message.logprobs, output.logprobs)
    if output.prompt_logprobs is not None:
        # Present, though a prompt of one token has no rows.
        message.prompt_logprobs.SetInParent()
        _add_logprobs(message.prompt_logprobs, output.prompt_logprobs)
    end = output.end
    if end is not None:
        message.finish_reason = _FINISH_REASONS[end.reason]
        stop_token_id = _stop_token_id(end)
        if stop_token_id is not None:
            message.stop_token_id = stop_token_id
        message.usage.prompt_tokens = end.num_prompt_tokens
        message.usage.completion_tokens = end.num_output_tokens
        message.usage.cached_tokens = end.num_cached_tokens
    return message


@dataclass(slots=True)
class PendingOutputs:
    """Outputs on their way to one gateway: one step's, or several steps' merged into one frame.

    Each request has one row, its tokens one after another.
    """

    first_step: int = 0
    last_step: int = 0
    num_tokens: int = 0
    """What is here by its size: tokens of outputs and rows of prompt logprobs; what a request went
    through counts as a token, since it may go through much before it has one."""
    timings: StepTimings = field(default_factory=StepTimings)
    _rows: dict[int, Sequence[int]] = field(default_factory=dict)
    _logprobs: dict[int, LogprobRows] = field(default_factory=dict)
    _prompt_logprobs: dict[int, LogprobRows] = field(default_factory=dict)
    _finished: dict[int, FinishedRequest] = field(default_factory=dict)
    _scheduled: dict[int, tuple[int, int]] = field(default_factory=dict)
    _prefilled: list[tuple[int, int]] = field(default_factory=list)
    _preempted: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        parts = self._rows, self._finished, self._scheduled, self._prefilled, self._preempted
        return any(parts)

    def add_step(
        self, outputs: EngineCoreOutputs, timings: StepTimings, handles: Mapping[str, int]
    ) -> None:
        """Take a step in. Requests without a handle have ended for the gateway already."""
        self.first_step = self.first_step or outputs.step
        self.last_step = outputs.step
        self.timings += timings
        for row, (request_id, token_ids) in enumerate(
            zip(outputs.request_ids, outputs.new_token_ids, strict=True)
        ):
            handle = handles.get(request_id)
            if handle is not None:
                self._add_row(handle, token_ids, outputs.logprobs.get(row))
                if row in outputs.prompt_logprobs:
                    self._prompt_logprobs[handle] = outputs.prompt_logprobs[row]
                    self.num_tokens += len(outputs.prompt_logprobs[row].logprobs)
        for item in outputs.scheduled:
            handle = handles.get(item.request_id)
            if handle is not None:
                self._scheduled[handle] = (item.num_cached_tokens, round(item.queued_time_s * 1e9))
        for request_id, num_tokens in outputs.prefilled:
            if (handle := handles.get(request_id)) is not None:
                self._prefilled.append((handle, num_tokens))
        self._preempted += [handles[each] for each in outputs.preempted if each in handles]
        self.num_tokens += len(outputs.prefilled) + len(outputs.preempted)

    def add_finished(self, handle: int, end: FinishedRequest) -> None:
        self._finished[handle] = end

    def to_proto(self, since_ns: int = 0) -> scheduler_pb2.EngineOutputs:
        """Build the columns.

        Args:
            since_ns: When the last answer came that the gateway heard of; 0: it heard of none.
        """
        rows, ends, scheduled = self._rows.values(), self._finished.values(), self._scheduled
        message = scheduler_pb2.EngineOutputs(
            first_step=self.first_step,
            last_step=self.last_step,
            handles=self._rows,
            token_counts=[len(token_ids) for token_ids in rows],
            token_ids=[token_id for token_ids in rows for token_id in token_ids],
            finished_handles=self._finished,
            finish_reasons=[_FINISH_REASONS[end.reason] for end in ends],
            stop_token_ids_plus_one=[_stop_token_id_plus_one(end) for end in ends],
            scheduled_handles=scheduled,
            num_cached_tokens=[num_cached for num_cached, _ in scheduled.values()],
            queue_ns=[queue_ns for _, queue_ns in scheduled.values()],
            logprob_handles=self._logprobs,
            prompt_logprob_handles=self._prompt_logprobs,
            prompt_logprob_counts=[len(rows.logprobs) for rows in self._prompt_logprobs.values()],
            prefill_handles=[handle for handle, _ in self._prefilled],
            prefill_token_counts=[num_tokens for _, num_tokens in self._prefilled],
            preempted_handles=self._preempted,
        )
        for logprob_rows in self._logprobs.values():
            _add_logprobs(message.logprobs, logprob_rows)
        for logprob_rows in self._prompt_logprobs.values():
            _add_logprobs(message.prompt_logprobs, logprob_rows)
        _set_timings(message.timings, self.timings, since_ns)
        return message

    def _add_row(self, handle: int, token_ids: Sequence[int], logprobs: LogprobRows | None) -> None:
        self.num_tokens += len(token_ids)
        before = self._rows.get(handle)
        self._rows[handle] = token_ids if before is None else [*before, *token_ids]
        if logprobs is None:
            return
        if handle in self._logprobs:
            self._logprobs[handle].extend(logprobs)
        else:
            self._logprobs[handle] = logprobs


def _stop_token_id(end: FinishedRequest) -> int | None:
    return end.stop_token_id if end.eos_token_id is None else end.eos_token_id


def _stop_token_id_plus_one(end: FinishedRequest) -> int:
    stop_token_id = _stop_token_id(end)
    return 0 if stop_token_id is None else stop_token_id + 1


def _add_logprobs(columns: common_pb2.LogprobColumns, rows: LogprobRows) -> None:
    columns.logprobs.extend(rows.logprobs)
    columns.ranks.extend(rows.ranks)
    columns.top_counts.extend(rows.top_counts)
    columns.top_token_ids.extend(rows.top_token_ids)
    columns.top_logprobs.extend(rows.top_logprobs)


def _set_timings(message: scheduler_pb2.StepTimings, timings: StepTimings, since_ns: int) -> None:
    message.schedule_ns = timings.schedule_ns
    message.execute_ns = timings.execute_ns
    message.forward_ns = timings.forward_ns
    message.sample_ns = timings.sample_ns
    message.idle_ns = timings.idle_ns
    message.prepare_ns = timings.prepare_ns
    message.queue_ns = timings.queue_ns
    message.busy_ns = timings.busy_ns
    if since_ns and timings.answered_ns:
        message.elapsed_ns = timings.answered_ns - since_ns
