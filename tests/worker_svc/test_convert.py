"""What has no other test of its own on the way between records and messages."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import InvalidRequestError
from pagewire.v1 import common_pb2, worker_pb2
from tests.worker_svc.harness import MODEL_INFO, ScriptedRunner
from worker_svc import convert
from worker_svc.calls import InitializeResult
from worker_svc.execute_session import BadStepFrame, MasksFrame, Payload, StepFrame
from worker_svc.lease import Lease
from worker_svc.model_load import LoadedModel, LoadProgress
from worker_svc.runners import describe_runner
from worker_svc.step import FailedRow, LogprobColumns, ModelRunnerOutput, RowFailure, StepTimings
from worker_svc.step_executor import StepDone


def test_only_recommended_sampling_defaults_are_sent() -> None:
    info = replace(MODEL_INFO, default_sampling={"temperature": 0.6, "top_k": 20})
    model = LoadedModel("d", EngineConfig(), ScriptedRunner(), info, "f", 64)
    result = InitializeResult(
        Lease("s", 1, 2), model, describe_runner(EngineConfig(), model.info), 100, 9, False
    )
    message = convert.initialize_response(result).result
    assert message.model_info.default_sampling_params == common_pb2.SamplingParams(
        temperature=0.6, top_k=20
    )
    assert (message.device, message.attention_backend) == ("cpu", "torch")
    assert message.weight_bytes == 4096


def test_progress_is_in_per_mille() -> None:
    progress = convert.initialize_response(LoadProgress("load_weights", 0.25)).progress
    assert (progress.stage, progress.done, progress.total) == ("load_weights", 250, 1000)


async def read(*requests: worker_pb2.ExecuteRequest) -> list[Payload]:
    async def stream() -> AsyncIterator[worker_pb2.ExecuteRequest]:
        for request in requests:
            yield request

    return [frame.payload async for frame in convert.frames(stream())]


async def test_draft_and_mask_columns_are_read() -> None:
    message = worker_pb2.SchedulerOutput(
        step=3,
        handles=[4, 5, 6],
        num_scheduled_tokens=[3, 1, 2],
        draft_counts=[2, 0, 1],
        draft_token_ids=[70, 71, 80],
        masked_handles=[6],
    )
    [payload] = await read(worker_pb2.ExecuteRequest(step=message))
    assert isinstance(payload, StepFrame)
    step = payload.step
    assert (step.draft_counts, step.draft_token_ids) == ([2, 0, 1], [70, 71, 80])
    assert step.masked_handles == [6]
    assert step.drafts() == {4: [70, 71], 6: [80]}


async def test_a_step_that_cannot_be_read_keeps_its_masks_due() -> None:
    new = worker_pb2.NewRequestData(handle=4, lora_digest="x")
    message = worker_pb2.SchedulerOutput(
        step=3, new_requests=[new], handles=[4], masked_handles=[4]
    )
    [payload] = await read(worker_pb2.ExecuteRequest(step=message))
    assert isinstance(payload, BadStepFrame)
    assert payload.step.masked_handles == [4]


async def test_masks_are_cut_into_rows() -> None:
    full = worker_pb2.StepMasks(step=3, handles=[4, 4, 6], bitmasks=bytes(range(6)))
    empty = worker_pb2.StepMasks(step=4)
    payloads = await read(
        worker_pb2.ExecuteRequest(masks=full), worker_pb2.ExecuteRequest(masks=empty)
    )
    first, second = [payload.masks for payload in payloads if isinstance(payload, MasksFrame)]
    assert (first.step, first.handles) == (3, [4, 4, 6])
    assert first.bitmasks.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (second.step, second.handles, len(second.bitmasks)) == (4, [], 0)


@pytest.mark.parametrize(("handles", "num_bytes"), [([4, 5], 3), ([], 1)])
async def test_masks_that_cannot_be_cut_are_refused(handles: list[int], num_bytes: int) -> None:
    message = worker_pb2.StepMasks(step=3, handles=handles, bitmasks=bytes(num_bytes))
    with pytest.raises(InvalidRequestError, match=f"{num_bytes} bytes") as caught:
        await read(worker_pb2.ExecuteRequest(masks=message))
    assert caught.value.reason == "INVALID_MASKS"


def test_failed_rows_and_logprobs_keep_their_places() -> None:
    output = ModelRunnerOutput(
        step=3,
        handles=[10, 11, 12],
        num_sampled=[1, 0, 2],
        sampled_token_ids=[5, 6, 7],
        failed=[FailedRow(11, RowFailure("NAN_LOGITS", "no number"))],
        logprobs=LogprobColumns(
            counts=[0, 1, 3],
            token_ids=[6, 7, 8, 7],
            logprobs=[-0.5, -1.0, -0.25, -1.0],
            sampled_ranks=[0, 1, 2],
        ),
        timings=StepTimings(1, 2, 3, 6),
    )
    message = convert.execute_response(4, StepDone(output, idle_ns=8)).output
    assert list(message.sampled_counts) == [1, 0, 2]
    assert (list(message.failed_handles), list(message.failed_reasons)) == ([11], ["NAN_LOGITS"])
    assert list(message.failed_messages) == ["no number"]
    assert list(message.logprob_handles) == [12]
    assert message.logprobs == common_pb2.LogprobColumns(
        logprobs=[-0.5, -1.0],
        ranks=[1, 2],
        top_counts=[0, 2],
        top_token_ids=[8, 7],
        top_logprobs=[-0.25, -1.0],
    )
    assert message.timings == worker_pb2.WorkerTimings(
        idle_ns=8, prepare_ns=1, forward_ns=2, sample_ns=3
    )


def test_prompt_logprobs_go_beside_their_handles_and_minus_infinity_survives() -> None:
    columns = LogprobColumns([2, 1], [6, 8, 7], [-math.inf, -0.25, -1.0], [9, 2])
    output = ModelRunnerOutput(
        step=3,
        handles=[10, 11],
        num_sampled=[1, 1],
        sampled_token_ids=[5, 6],
        prompt_logprobs={11: columns, 10: LogprobColumns([], [], [], [])},
    )
    sent = convert.execute_response(4, StepDone(output, idle_ns=8)).SerializeToString()
    message = worker_pb2.ExecuteResponse.FromString(sent).output
    assert list(message.prompt_logprob_handles) == [11, 10]
    assert list(message.prompt_logprob_counts) == [2, 0]
    assert message.prompt_logprobs == common_pb2.LogprobColumns(
        logprobs=[-math.inf, -1.0],
        ranks=[9, 2],
        top_counts=[1, 0],
        top_token_ids=[8],
        top_logprobs=[-0.25],
    )
    assert not message.HasField("logprobs")
