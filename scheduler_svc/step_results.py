"""What a step's answer does to its requests, and what clients hear of it.

New tokens are appended, ends found, drafts settled. It plans nothing.
"""

from __future__ import annotations

from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest, ScheduledRequest
from scheduler_svc.kv_cache_manager import KVCacheManager
from scheduler_svc.live_requests import LiveRequests
from scheduler_svc.new_tokens import append_tokens
from scheduler_svc.output import ModelRunnerOutput, RowError, SchedulerOutput
from scheduler_svc.request import Request
from scheduler_svc.speculation import Speculation
from scheduler_svc.stop import FinishReason, Stop

_NO_TOKEN = RowError(Stop(FinishReason.ERROR).error_reason, "the worker drew no token")


class StepResults:
    """Takes in the answers to steps, in the order in which the steps were planned."""

    def __init__(
        self, live: LiveRequests, kv_cache: KVCacheManager, speculation: Speculation
    ) -> None:
        self._live = live
        self._kv_cache = kv_cache
        self._speculation = speculation

    def take(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in what the worker sampled in a step.

        Tokens of requests that ended meanwhile are ignored, those of preempted ones are kept: they
        come back with them.

        Returns:
            What is new, by client.
        """
        step, outputs = output.step, dict[int, EngineCoreOutputs]()
        self._report_moves(outputs, output)
        is_plain = not (output.drafts or result.errors or result.logprobs or result.prompt_logprobs)
        any_finished = False
        columns = output.requests, output.draws, result.sampled_token_ids
        for row, request, draws, token_ids in zip(
            range(len(output.requests)), *columns, strict=True
        ):
            if step <= request.dropped_through_step:
                continue
            if is_plain and draws and len(token_ids) == 1 and request.grammar is None:
                # Nearly every row of nearly every step.
                client = outputs.get(request.client_id) or _outputs_for(outputs, request, step)
                client.request_ids.append(request.request_id)
                client.new_token_ids.append(token_ids)
                stop = request.append_drawn_token(token_ids[0])
                if stop is not None:
                    any_finished = True
                    client.finished.append(self._live.finish(request, stop, ""))
            elif self._take_row(outputs, output, result, row):
                any_finished = True
        self._live.note_prefilled()
        if any_finished:
            self._live.drop_finished()
        self._live.suspects.clear_passed(output.requests)
        return outputs

    def _take_row(
        self,
        outputs: dict[int, EngineCoreOutputs],
        output: SchedulerOutput,
        result: ModelRunnerOutput,
        row: int,
    ) -> bool:
        """Take in one row, whatever came with it; whether its request has ended by that."""
        request, draws = output.requests[row], output.draws[row]
        token_ids = result.sampled_token_ids[row]
        step, stop = output.step, None
        if draws:
            request.num_output_placeholders -= 1
        if token_ids:
            drafts = output.drafts.get(request.request_id)
            if drafts is not None:
                self._speculation.settle_row(request, drafts, len(token_ids))
            is_first = request.num_output_tokens == 0
            token_ids, stop = append_tokens(request, token_ids)
            if token_ids:
                client = _outputs_for(outputs, request, step)
                client.add_logprobs(len(token_ids), result, row, is_first=is_first)
                client.add_row(request.request_id, token_ids)
        if stop is None and row not in result.errors and (token_ids or not draws):
            return False
        # Without a token nothing would ever schedule it again.
        error = result.errors.get(row, _NO_TOKEN)
        finished = self._finish_row(request, stop, error, step)
        _outputs_for(outputs, request, step).finished.append(finished)
        return True

    def _finish_row(
        self, request: Request, stop: Stop | None, error: RowError, step: int
    ) -> FinishedRequest:
        """End a request of a step: by its tokens, or else by the error."""
        if stop is not None:
            return self._live.finish(request, stop, "")
        self._kv_cache.uncache_since(request, step)
        stop = Stop(FinishReason.ERROR, error_reason=error.reason)
        return self._live.finish(request, stop, error.message)

    def _report_moves(self, outputs: dict[int, EngineCoreOutputs], output: SchedulerOutput) -> None:
        """Tell clients what became of requests besides their tokens, for who follows them."""
        step = output.step
        for request in self._live.take_newly_scheduled():
            client = _outputs_for(outputs, request, step)
            client.scheduled.append(ScheduledRequest.of(request))
        for request, num_tokens in output.prefills() if output.has_prefill else ():
            if not request.ignores_outputs_of(step):
                client = _outputs_for(outputs, request, step)
                client.prefilled.append((request.request_id, num_tokens))
        for request_id in output.preempted_req_ids:
            if (preempted := self._live.by_id.get(request_id)) is not None:
                _outputs_for(outputs, preempted, step).preempted.append(request_id)


def _outputs_for(
    outputs: dict[int, EngineCoreOutputs], request: Request, step: int
) -> EngineCoreOutputs:
    client = outputs.get(request.client_id)
    if client is None:
        client = outputs[request.client_id] = EngineCoreOutputs(step)
    return client
