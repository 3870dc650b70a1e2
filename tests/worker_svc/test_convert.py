"""What has no other test of its own on the way between records and messages."""

from __future__ import annotations

from dataclasses import replace

from pagewire.engine_config import EngineConfig
from pagewire.v1 import common_pb2, worker_pb2
from tests.worker_svc.harness import MODEL_INFO, ScriptedRunner
from worker_svc import convert
from worker_svc.calls import InitializeResult
from worker_svc.lease import Lease
from worker_svc.model_load import LoadedModel, LoadProgress
from worker_svc.runners import describe_runner
from worker_svc.step import FailedRow, LogprobColumns, ModelRunnerOutput, RowFailure, StepTimings
from worker_svc.step_executor import StepDone


def test_only_recommended_sampling_defaults_are_sent() -> None:
    info = replace(MODEL_INFO, default_sampling={"temperature": 0.6, "top_k": 20})
    model = LoadedModel("d", EngineConfig(), ScriptedRunner(), info, "f", 64)
    result = InitializeResult(
        Lease("s", 1, 2), model, describe_runner(EngineConfig()), 100, 9, False
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
