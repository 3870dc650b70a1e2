"""What callers ask for, read from their messages, and why it is refused."""

from __future__ import annotations

from pagewire import wire
from pagewire.kit.errors import InvalidRequestError, PagewireError
from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc.pause import PauseMode
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.scheduler import ABORTED
from scheduler_svc.stop import FinishReason, Stop

_PAUSE_MODES: dict[int, PauseMode] = {
    scheduler_pb2.PAUSE_MODE_ABORT: PauseMode.ABORT,
    scheduler_pb2.PAUSE_MODE_WAIT: PauseMode.WAIT,
    scheduler_pb2.PAUSE_MODE_KEEP: PauseMode.KEEP,
}
_STOPPED = Stop(FinishReason.STOP)


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
