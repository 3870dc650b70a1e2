"""Between the worker's records and protobuf messages; the only module that knows both.

Columns are copied as they are; checks of their meaning belong to whoever uses the records. Messages
come from a scheduler of ours, but a damaged one must give an error, never a wrong record.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path

import numpy as np

from pagewire.kit.errors import InvalidRequestError, PagewireError, UnimplementedError
from pagewire.sampling_params import SamplingParams
from pagewire.v1 import common_pb2, worker_pb2
from pagewire.wire import (
    engine_config_from_proto,
    sampling_params_from_proto,
    sampling_params_to_proto,
)
from worker_svc.calls import (
    InitializeCall,
    InitializeResult,
    KvCacheCall,
    RendezvousOpened,
    WorkerState,
    WorkerStatus,
)
from worker_svc.execute_session import (
    Accepted,
    Answer,
    BadStepFrame,
    CloseFrame,
    Frame,
    HeartbeatFrame,
    MasksFrame,
    OpenFrame,
    Payload,
    StepFrame,
)
from worker_svc.grammar_masks import INVALID_MASKS, GrammarMasks
from worker_svc.lease import Lease
from worker_svc.model_load import LoadedModel, LoadProgress
from worker_svc.profiling import (
    DEFAULT_NAME,
    MAX_SECONDS,
    MAX_STEPS,
    ProfileCall,
    ProfileResult,
)
from worker_svc.step import LogprobColumns, ModelRunnerOutput, NewRequest, SchedulerOutput
from worker_svc.step_executor import StepDone, StepFailure

InitializeEvent = LoadProgress | RendezvousOpened | InitializeResult

PROGRESS_UNIT = "per mille"
_PROGRESS_TOTAL = 1000

_STATES = {
    WorkerState.BLANK: worker_pb2.WORKER_STATE_BLANK,
    WorkerState.INITIALIZING: worker_pb2.WORKER_STATE_INITIALIZING,
    WorkerState.LOADED: worker_pb2.WORKER_STATE_LOADED,
    WorkerState.READY: worker_pb2.WORKER_STATE_READY,
    WorkerState.SLEEPING: worker_pb2.WORKER_STATE_SLEEPING,
}


def lease_from_proto(message: worker_pb2.Lease) -> Lease:
    return Lease(message.scheduler_id, message.epoch, message.token)


def lease_to_proto(lease: Lease) -> worker_pb2.Lease:
    return worker_pb2.Lease(scheduler_id=lease.scheduler_id, epoch=lease.epoch, token=lease.token)


def initialize_call(request: worker_pb2.InitializeRequest) -> InitializeCall:
    """Read the request.

    Raises:
        InvalidRequestError: The configuration has a value that it refuses.
    """
    try:
        config = engine_config_from_proto(request.engine_config)
    except ValueError as error:
        text = " ".join(str(part) for part in error.args)
        raise InvalidRequestError(
            f"engine_config: {text}", reason="INVALID_CONFIG", field="engine_config"
        ) from error
    return InitializeCall(
        scheduler_id=request.lease.scheduler_id,
        epoch=request.lease.epoch,
        config=config,
        config_digest=request.config_digest,
        rank=request.rank,
        world_size=request.world_size,
        group_generation=request.group_generation,
        rendezvous=request.rendezvous,
    )


def initialize_response(event: InitializeEvent) -> worker_pb2.InitializeResponse:
    if isinstance(event, LoadProgress):
        progress = worker_pb2.InitializeProgress(
            stage=event.stage,
            done=round(event.fraction * _PROGRESS_TOTAL),
            total=_PROGRESS_TOTAL,
            unit=PROGRESS_UNIT,
        )
        return worker_pb2.InitializeResponse(progress=progress)
    if isinstance(event, RendezvousOpened):
        opened = worker_pb2.RendezvousOpened(rendezvous=event.rendezvous)
        return worker_pb2.InitializeResponse(rendezvous=opened)
    return worker_pb2.InitializeResponse(result=_initialize_result(event))


def kv_cache_call(request: worker_pb2.AllocateKvCacheRequest) -> KvCacheCall:
    return KvCacheCall(
        lease=lease_from_proto(request.lease),
        num_blocks=request.num_blocks,
        block_size=request.block_size,
        max_model_len=request.max_model_len,
    )


def profile_call(request: worker_pb2.StartProfileRequest) -> ProfileCall:
    return ProfileCall(
        name=request.name or DEFAULT_NAME,
        max_steps=request.max_steps or MAX_STEPS,
        max_seconds=request.max_seconds or MAX_SECONDS,
    )


def start_profile_response(call: ProfileCall, path: Path) -> worker_pb2.StartProfileResponse:
    return worker_pb2.StartProfileResponse(
        path=str(path), max_steps=call.max_steps, max_seconds=call.max_seconds
    )


def stop_profile_response(result: ProfileResult) -> worker_pb2.StopProfileResponse:
    operators = [
        worker_pb2.OperatorTime(
            name=operator.name,
            calls=operator.calls,
            self_cpu_ns=operator.self_cpu_ns,
            self_device_ns=operator.self_device_ns,
        )
        for operator in result.times.operators
    ]
    return worker_pb2.StopProfileResponse(
        path=str(result.path),
        num_steps=result.num_steps,
        duration_ns=result.duration_ns,
        operators=operators,
        total_self_cpu_ns=result.times.total_self_cpu_ns,
        total_self_device_ns=result.times.total_self_device_ns,
    )


def status_response(status: WorkerStatus) -> worker_pb2.GetStatusResponse:
    return worker_pb2.GetStatusResponse(
        worker_epoch=status.worker_epoch,
        state=_STATES[status.state],
        lease_holder=status.lease_holder,
        config_digest=status.config_digest,
        num_requests=status.num_requests,
    )


async def frames(requests: AsyncIterable[worker_pb2.ExecuteRequest]) -> AsyncGenerator[Frame, None]:
    """Read the frames of an Execute stream as they come."""
    async for request in requests:
        yield Frame(request.frame, lease_from_proto(request.lease), _payload(request))


def execute_response(number: int, answer: Answer) -> worker_pb2.ExecuteResponse:
    """Build frame `number` of the way back."""
    if isinstance(answer, StepDone):
        return worker_pb2.ExecuteResponse(frame=number, output=_output(answer))
    if isinstance(answer, StepFailure):
        failed = worker_pb2.StepFailed(
            step=answer.step, reason=answer.reason, message=answer.message
        )
        return worker_pb2.ExecuteResponse(frame=number, failed=failed)
    if isinstance(answer, Accepted):
        accepted = worker_pb2.ExecuteAccepted(worker_epoch=answer.worker_epoch)
        return worker_pb2.ExecuteResponse(frame=number, accepted=accepted)
    return worker_pb2.ExecuteResponse(frame=number, heartbeat=answer.heartbeat)


def _payload(request: worker_pb2.ExecuteRequest) -> Payload:
    kind = request.WhichOneof("payload")
    if kind == "step":
        return _step_payload(request.step)
    if kind == "open":
        return OpenFrame(request.open.group_generation)
    if kind == "heartbeat":
        return HeartbeatFrame(request.heartbeat)
    if kind == "close":
        return CloseFrame()
    if kind == "masks":
        return MasksFrame(_masks(request.masks))
    raise InvalidRequestError("a frame has no payload that we know", reason="EMPTY_FRAME")


def _step_payload(message: worker_pb2.SchedulerOutput) -> StepFrame | BadStepFrame:
    try:
        return StepFrame(_step(message))
    except PagewireError as error:
        named = [new.handle for new in message.new_requests]
        named += [*message.handles, *message.finished_handles, *message.preempted_handles]
        step = SchedulerOutput(
            message.step,
            finished_handles=named,
            masked_handles=list(message.masked_handles),  # its masks are on their way
        )
        return BadStepFrame(step, error)


def _step(message: worker_pb2.SchedulerOutput) -> SchedulerOutput:
    return SchedulerOutput(
        step=message.step,
        new_requests=[_new_request(new) for new in message.new_requests],
        handles=list(message.handles),
        num_scheduled_tokens=list(message.num_scheduled_tokens),
        new_block_counts=list(message.new_block_counts),
        new_block_ids=list(message.new_block_ids),
        finished_handles=list(message.finished_handles),
        preempted_handles=list(message.preempted_handles),
        draft_counts=list(message.draft_counts),
        draft_token_ids=list(message.draft_token_ids),
        masked_handles=list(message.masked_handles),
    )


def _masks(message: worker_pb2.StepMasks) -> GrammarMasks:
    """Read the masks of a step; only whoever knows the vocabulary can check the rows' length.

    Raises:
        InvalidRequestError: The bytes cannot be cut into rows.
    """
    num_rows, num_bytes = len(message.handles), len(message.bitmasks)
    if num_bytes % num_rows if num_rows else num_bytes:
        text = f"masks of step {message.step}: {num_bytes} bytes are not {num_rows} equal rows"
        raise InvalidRequestError(text, reason=INVALID_MASKS, field="masks.bitmasks")
    bits = np.frombuffer(message.bitmasks, dtype=np.uint8)
    row_bytes = num_bytes // num_rows if num_rows else 0
    return GrammarMasks(message.step, list(message.handles), bits.reshape(num_rows, row_bytes))


def _new_request(message: worker_pb2.NewRequestData) -> NewRequest:
    if message.lora_digest:
        text = "adapters are not supported so far"
        raise UnimplementedError(text, reason="LORA_NOT_SUPPORTED")
    return NewRequest(
        handle=message.handle,
        request_id=message.request_id,
        prompt_token_ids=list(message.prompt_token_ids),
        output_token_ids=list(message.output_token_ids),
        sampling=sampling_params_from_proto(message.sampling_params),
        num_computed_tokens=message.num_computed_tokens,
        block_ids=list(message.block_ids),
        block_counts=list(message.block_counts),
        traceparent=message.traceparent,
    )


def _output(done: StepDone) -> worker_pb2.ModelRunnerOutput:
    output, timings = done.output, done.output.timings
    message = worker_pb2.ModelRunnerOutput(
        step=output.step,
        sampled_counts=output.num_sampled,
        sampled_token_ids=output.sampled_token_ids,
        failed_handles=[row.handle for row in output.failed],
        failed_reasons=[row.failure.reason for row in output.failed],
        failed_messages=[row.failure.message for row in output.failed],
        timings=worker_pb2.WorkerTimings(
            idle_ns=done.idle_ns,
            prepare_ns=timings.prepare_ns,
            forward_ns=timings.forward_ns,
            sample_ns=timings.sample_ns,
            queue_ns=done.queue_ns,
            busy_ns=done.busy_ns,
        ),
    )
    if output.logprobs is not None:
        _set_logprobs(message, output, output.logprobs)
    for handle, columns in output.prompt_logprobs.items():
        message.prompt_logprob_handles.append(handle)
        message.prompt_logprob_counts.append(len(columns.counts))
        _add_logprobs(message.prompt_logprobs, columns)
    return message


def _set_logprobs(
    message: worker_pb2.ModelRunnerOutput, output: ModelRunnerOutput, columns: LogprobColumns
) -> None:
    token = 0
    for handle, num_sampled in zip(output.handles, output.num_sampled, strict=True):
        if any(columns.counts[token : token + num_sampled]):
            message.logprob_handles.append(handle)
        token += num_sampled
    _add_logprobs(message.logprobs, columns)


def _add_logprobs(message: common_pb2.LogprobColumns, columns: LogprobColumns) -> None:
    """Our columns have a token first among its entries; the message has it apart."""
    start = 0
    for count, rank in zip(columns.counts, columns.sampled_ranks, strict=True):
        if not count:
            continue
        end = start + count
        message.logprobs.append(columns.logprobs[start])
        message.ranks.append(rank)
        message.top_counts.append(count - 1)
        message.top_token_ids.extend(columns.token_ids[start + 1 : end])
        message.top_logprobs.extend(columns.logprobs[start + 1 : end])
        start = end


def _initialize_result(result: InitializeResult) -> worker_pb2.InitializeResult:
    return worker_pb2.InitializeResult(
        lease=lease_to_proto(result.lease),
        model_info=_model_info(result.model),
        available_kv_cache_bytes=result.available_kv_cache_bytes,
        bytes_per_block=result.model.bytes_per_block,
        weight_bytes=result.model.info.weight_bytes,
        worker_epoch=result.worker_epoch,
        reused_weights=result.reused_weights,
        dtype=result.model.info.dtype,
        attention_backend=result.model.info.attention_backend,
        device=result.description.device,
        sampler_version=result.description.sampler_version,
        kv_cache_groups=[
            worker_pb2.KvCacheGroup(
                num_layers=len(group.layers), sliding_window=group.sliding_window
            )
            for group in result.model.info.kv_cache_groups
        ],
    )


def _model_info(model: LoadedModel) -> common_pb2.ModelInfo:
    info = model.info
    return common_pb2.ModelInfo(
        architecture=info.architecture,
        vocab_size=info.vocab_size,
        max_position_embeddings=info.max_model_len,
        num_layers=info.num_layers,
        num_kv_heads=info.num_kv_heads,
        head_dim=info.head_dim,
        hidden_size=info.hidden_size,
        eos_token_ids=info.eos_token_ids,
        weights_digest=info.weights_digest,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        default_sampling_params=_default_sampling(model),
    )


def _default_sampling(model: LoadedModel) -> common_pb2.SamplingParams:
    """Only what the publisher recommends: the other fields stay absent."""
    names = model.info.default_sampling
    params = sampling_params_to_proto(SamplingParams(**names))  # type: ignore[arg-type]
    message = common_pb2.SamplingParams()
    for name in names:
        setattr(message, name, getattr(params, name))
    return message
