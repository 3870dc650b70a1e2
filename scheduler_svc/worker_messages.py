"""Steps and their answers as messages of `WorkerService.Execute`; part of `worker_client`.

On the wire a request is an integer handle, chosen here and valid within one Execute stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, count, pairwise, zip_longest

from pagewire import wire
from pagewire.v1 import common_pb2, worker_pb2
from scheduler_svc.executor import WorkerFacts
from scheduler_svc.kv_cache_groups import KvCacheGroups, KvCacheGroupSpec
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.output import ModelRunnerOutput, NewRequestData, RowError, SchedulerOutput


class StepEncoder:
    """Encodes the steps of one Execute stream; keeps the handles of what the worker knows."""

    def __init__(self, num_groups: int = 1) -> None:
        """Begin a stream.

        Args:
            num_groups: KV cache groups: the ids of a row are those of the first one, then as many
                of each other.
        """
        self._num_groups = num_groups
        self._handles: dict[str, int] = {}
        self._next_handle = count(1)
        self._next_step = count(1)

    def encode(self, output: SchedulerOutput) -> worker_pb2.SchedulerOutput:
        """Build the step's message. Ids that end here may come again as new in the same step."""
        cached = output.scheduled_cached_reqs
        known = self._handles
        cached_handles = [known[request_id] for request_id in cached.request_ids]
        finished = self._forget(output.finished_req_ids)
        preempted = self._forget(output.preempted_req_ids)
        new_requests = [self._encode_new(new) for new in output.scheduled_new_reqs]
        handles = cached_handles + [new.handle for new in new_requests]
        num_groups = self._num_groups
        new_block_counts = [len(block_ids) // num_groups for block_ids in cached.new_block_ids]
        if num_groups > 1:
            new_block_counts = [n for n in new_block_counts for _ in range(num_groups)]
        return worker_pb2.SchedulerOutput(
            # Steps count within the stream, those of the engine over all streams.
            step=next(self._next_step),
            new_requests=new_requests,
            handles=handles,
            num_scheduled_tokens=output.num_scheduled_tokens,
            new_block_counts=new_block_counts + [0] * (len(new_requests) * num_groups),
            new_block_ids=chain.from_iterable(cached.new_block_ids),
            finished_handles=finished,
            preempted_handles=preempted,
            draft_counts=_draft_counts(output),
            draft_token_ids=chain.from_iterable(output.drafts.values()),
            masked_handles=[handles[row] for row in output.masked_rows],
        )

    def _encode_new(self, new: NewRequestData) -> worker_pb2.NewRequestData:
        handle = self._handles[new.request_id] = next(self._next_handle)
        num_groups = self._num_groups
        return worker_pb2.NewRequestData(
            handle=handle,
            request_id=new.request_id,
            prompt_token_ids=new.prompt_token_ids,
            output_token_ids=new.output_token_ids,
            sampling_params=wire.sampling_params_to_proto(new.sampling_params),
            num_computed_tokens=new.num_computed_tokens,
            block_ids=new.block_ids,
            lora_digest=new.lora_digest or "",
            traceparent=new.traceparent,
            block_counts=[len(new.block_ids) // num_groups] * num_groups if num_groups > 1 else (),
        )

    def _forget(self, request_ids: Sequence[str]) -> list[int]:
        # A request may be preempted and then end before it ran again: the worker hears it once.
        handles = (self._handles.pop(request_id, None) for request_id in request_ids)
        return [handle for handle in handles if handle is not None]


def decode_output(
    message: worker_pb2.ModelRunnerOutput, step: worker_pb2.SchedulerOutput, engine_step: int
) -> ModelRunnerOutput:
    """Read a step's answer.

    Args:
        message: The answer.
        step: What it answers.
        engine_step: The engine's number of the step.

    Raises:
        ValueError: The answer does not fit the step.
    """
    counts, token_ids = message.sampled_counts, list(message.sampled_token_ids)
    if message.step != step.step:
        raise ValueError(f"step {message.step} was answered, {step.step} asked")
    if len(counts) != len(step.handles):
        raise ValueError(f"{len(counts)} rows were answered, {len(step.handles)} asked")
    if any(count > 1 for count in counts) and not _fits_drafts(counts, step.draft_counts):
        raise ValueError("a row has more tokens than its drafts and one")
    if sum(counts) != len(token_ids):
        raise ValueError("sampled_counts and sampled_token_ids disagree")
    ends = list(accumulate(counts, initial=0))
    row_of = {handle: row for row, handle in enumerate(step.handles)} if _is_sparse(message) else {}
    return ModelRunnerOutput(
        step=engine_step,
        sampled_token_ids=[token_ids[start:end] for start, end in pairwise(ends)],
        logprobs=_decode_logprobs(message, row_of),
        prompt_logprobs=_decode_prompt_logprobs(message, row_of),
        errors=_decode_errors(message, row_of),
        forward_ns=message.timings.forward_ns,
        sample_ns=message.timings.sample_ns,
        idle_ns=message.timings.idle_ns,
        prepare_ns=message.timings.prepare_ns,
        queue_ns=message.timings.queue_ns,
        busy_ns=message.timings.busy_ns,
    )


def _draft_counts(output: SchedulerOutput) -> list[int]:
    """By row, empty without drafts. Drafts are planned in row order, so their ids are too."""
    drafts = output.drafts
    return [len(drafts.get(r.request_id, ())) for r in output.requests] if drafts else []


def encode_masks(
    masks: Mapping[int, bytes], output: SchedulerOutput, step: worker_pb2.SchedulerOutput
) -> worker_pb2.StepMasks:
    """Build the masks of a step.

    Args:
        masks: By row of the step: one bitmask, and one more a draft.
        output: The step.
        step: Its message.
    """
    handles: list[int] = []
    for row in masks:
        num_drafts = len(output.drafts.get(output.requests[row].request_id, ()))
        handles += [step.handles[row]] * (1 + num_drafts)
    return worker_pb2.StepMasks(step=step.step, handles=handles, bitmasks=b"".join(masks.values()))


def decode_facts(result: worker_pb2.InitializeResult) -> WorkerFacts:
    """Read what Initialize found."""
    info = result.model_info
    return WorkerFacts(
        vocab_size=info.vocab_size,
        max_position_embeddings=info.max_position_embeddings,
        eos_token_ids=frozenset(info.eos_token_ids),
        available_kv_cache_bytes=result.available_kv_cache_bytes,
        bytes_per_block=result.bytes_per_block,
        weights_digest=info.weights_digest,
        dtype=result.dtype,
        sampler_version=result.sampler_version,
        model_info=info,
        kv_cache_groups=_decode_groups(result),
    )


def _decode_groups(result: worker_pb2.InitializeResult) -> KvCacheGroups:
    groups = result.kv_cache_groups
    if not groups:
        return (KvCacheGroupSpec(max(1, result.model_info.num_layers)),)
    return tuple(KvCacheGroupSpec(group.num_layers, group.sliding_window) for group in groups)


def _fits_drafts(counts: Sequence[int], draft_counts: Sequence[int]) -> bool:
    pairs = zip_longest(counts, draft_counts, fillvalue=0)
    return all(num_sampled <= num_drafts + 1 for num_sampled, num_drafts in pairs)


def _is_sparse(message: worker_pb2.ModelRunnerOutput) -> bool:
    return bool(message.failed_handles or message.logprob_handles or message.prompt_logprob_handles)


def _decode_errors(
    message: worker_pb2.ModelRunnerOutput, row_of: dict[int, int]
) -> dict[int, RowError]:
    columns = message.failed_handles, message.failed_reasons, message.failed_messages
    return {
        row_of[handle]: RowError(reason, text)
        for handle, reason, text in zip(*columns, strict=True)
    }


def _decode_logprobs(
    message: worker_pb2.ModelRunnerOutput, row_of: dict[int, int]
) -> dict[int, LogprobRows]:
    rows = [row_of[handle] for handle in message.logprob_handles]
    counts = [message.sampled_counts[row] for row in rows]
    return _split_logprobs(message.logprobs, rows, counts)


def _decode_prompt_logprobs(
    message: worker_pb2.ModelRunnerOutput, row_of: dict[int, int]
) -> dict[int, LogprobRows]:
    rows = [row_of[handle] for handle in message.prompt_logprob_handles]
    if sum(message.prompt_logprob_counts) != len(message.prompt_logprobs.logprobs):
        raise ValueError("prompt_logprob_counts and prompt_logprobs disagree")
    return _split_logprobs(message.prompt_logprobs, rows, message.prompt_logprob_counts)


def _split_logprobs(
    columns: common_pb2.LogprobColumns, rows: Sequence[int], token_counts: Sequence[int]
) -> dict[int, LogprobRows]:
    split, start, top_start = {}, 0, 0
    for row, num_tokens in zip(rows, token_counts, strict=True):
        end = start + num_tokens
        top_end = top_start + sum(columns.top_counts[start:end])
        split[row] = _slice(columns, start, end, top_start, top_end)
        start, top_start = end, top_end
    return split


def _slice(
    columns: common_pb2.LogprobColumns, start: int, end: int, top_start: int, top_end: int
) -> LogprobRows:
    return LogprobRows(
        logprobs=columns.logprobs[start:end],
        ranks=columns.ranks[start:end],
        top_counts=columns.top_counts[start:end],
        top_token_ids=columns.top_token_ids[top_start:top_end],
        top_logprobs=columns.top_logprobs[top_start:top_end],
    )
