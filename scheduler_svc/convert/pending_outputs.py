"""The outputs that one gateway has not got yet, as columns of its next frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagewire.v1 import scheduler_pb2
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.convert.outputs import (
    FINISH_REASONS,
    add_logprobs,
    set_timings,
    stop_token_of,
)
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.step_figures import StepTimings

_ROW_VALUES = 8
"""What a row takes beside its tokens, and what the end of a request takes."""


@dataclass(slots=True)
class PendingOutputs:
    """Outputs on their way to one gateway: one step's, or several steps' merged into one frame.

    Each request has one row, its tokens one after another.
    """

    first_step: int = 0
    last_step: int = 0
    num_values: int = 0
    """What is here by its size, in numbers of columns: ids, log-probabilities, counts. What stands
    for more than its numbers, as a row does, counts as several."""
    timings: StepTimings = field(default_factory=StepTimings)
    _rows: dict[int, Sequence[int]] = field(default_factory=dict)
    _merged: dict[int, list[int]] = field(default_factory=dict)
    """Rows of several steps: these lists are ours, the engine's own stay as they are."""
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
                    self.num_values += _ROW_VALUES + outputs.prompt_logprobs[row].num_values
        for item in outputs.scheduled:
            handle = handles.get(item.request_id)
            if handle is not None:
                self._scheduled[handle] = (item.num_cached_tokens, round(item.queued_time_s * 1e9))
                self.num_values += _ROW_VALUES
        for request_id, num_tokens in outputs.prefilled:
            if (handle := handles.get(request_id)) is not None:
                self._prefilled.append((handle, num_tokens))
        self._preempted += [handles[each] for each in outputs.preempted if each in handles]
        self.num_values += 2 * len(outputs.prefilled) + len(outputs.preempted)

    def add_finished(self, handle: int, end: FinishedRequest) -> None:
        self._finished[handle] = end
        self.num_values += _ROW_VALUES

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
            finish_reasons=[FINISH_REASONS[end.reason] for end in ends],
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
            add_logprobs(message.logprobs, logprob_rows)
        for logprob_rows in self._prompt_logprobs.values():
            add_logprobs(message.prompt_logprobs, logprob_rows)
        set_timings(message.timings, self.timings, since_ns)
        return message

    def _add_row(self, handle: int, token_ids: Sequence[int], logprobs: LogprobRows | None) -> None:
        self.num_values += len(token_ids)
        before = self._rows.get(handle)
        if before is None:
            self._rows[handle] = token_ids
            self.num_values += _ROW_VALUES
        elif handle in self._merged:
            self._merged[handle] += token_ids
        else:
            self._rows[handle] = self._merged[handle] = [*before, *token_ids]
        if logprobs is None:
            return
        self.num_values += logprobs.num_values
        if handle in self._logprobs:
            self._logprobs[handle].extend(logprobs)
        else:
            self._logprobs[handle] = logprobs


def _stop_token_id_plus_one(end: FinishedRequest) -> int:
    token_id = stop_token_of(end)
    return 0 if token_id is None else token_id + 1
