"""Requests, schedulers and steps for tests; a test overrides the defaults that matter to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from pagewire.sampling_params import SamplingParams
from scheduler_svc.client_output import EngineCoreOutputs
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.request import EngineCoreRequest, Request
from scheduler_svc.scheduler import Scheduler

VOCAB_SIZE = 1000
EOS = 999

_request_numbers = count()


def make_limits(**overrides: Any) -> SchedulerLimits:
    values: dict[str, Any] = {
        "max_model_len": 256,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "block_size": 4,
        "num_blocks": 101,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": frozenset({EOS}),
    }
    return SchedulerLimits(**(values | overrides))


def make_scheduler(**overrides: Any) -> Scheduler:
    return Scheduler(make_limits(**overrides))


def make_core_request(
    prompt: Sequence[int] | int = 10, request_id: str | None = None, **overrides: Any
) -> EngineCoreRequest:
    """A request; an int for the prompt makes that many tokens that no other request begins with."""
    number = next(_request_numbers)
    if isinstance(prompt, int):
        prompt = [(number * 7 + 13 * i) % EOS for i in range(prompt)]
    own = {"client_id", "output_token_ids", "is_resumed", "priority", "cache_salt", "lora_digest"}
    own.add("num_suspicions")
    arrival_time_s = overrides.pop("arrival_time_s", float(number))
    params = {"max_tokens": 8} | {k: v for k, v in overrides.items() if k not in own}
    return EngineCoreRequest(
        request_id=request_id or f"r{number}",
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(**params),
        arrival_time_s=arrival_time_s,
        **{k: v for k, v in overrides.items() if k in own},
    )


def make_request(prompt: Sequence[int] | int = 10, **overrides: Any) -> Request:
    return Request(make_core_request(prompt, **overrides), make_limits(), 0.0)


def add(scheduler: Scheduler, prompt: Sequence[int] | int = 10, **overrides: Any) -> Request:
    return scheduler.add_request(make_core_request(prompt, **overrides), 0.0)


def sample(
    output: SchedulerOutput, next_token: Callable[[Request], int] = lambda request: 1
) -> ModelRunnerOutput:
    """What a worker answers: one token for each request whose tokens are all computed."""
    return ModelRunnerOutput(
        step=output.step,
        sampled_token_ids=[
            [next_token(request)] if draws else []
            for request, draws in zip(output.requests, output.draws, strict=True)
        ],
    )


def step(
    scheduler: Scheduler, next_token: Callable[[Request], int] = lambda request: 1
) -> tuple[SchedulerOutput, dict[int, EngineCoreOutputs]]:
    """One whole step, with its invariants checked."""
    output = scheduler.schedule(now_s=1.0)
    outputs = scheduler.update_from_output(output, sample(output, next_token))
    scheduler.check_integrity()
    return output, outputs


def scheduled(output: SchedulerOutput) -> dict[str, int]:
    """Number of scheduled tokens by request id."""
    ids = [request.request_id for request in output.requests]
    return dict(zip(ids, output.num_scheduled_tokens, strict=True))
