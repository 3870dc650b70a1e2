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
        drafts, errors = output.drafts, result.errors
        self._report_moves(outputs, output)
        any_finished, has_logprobs = False, bool(result.logprobs or result.prompt_logprobs)
        for row, (request, draws, token_ids) in enumerate(
            zip(output.requests, output.draws, result.sampled_token_ids, strict=True)
        ):
            if step <= request.dropped_through_step:
                continue
            stop = None
            if draws:
                request.num_output_placeholders -= 1
            if token_ids:
                if drafts and request.request_id in drafts:
                    num_sampled = len(token_ids)
                    self._speculation.settle_row(request, drafts[request.request_id], num_sampled)
                is_first = has_logprobs and request.num_output_tokens == 0
                token_ids, stop = append_tokens(request, token_ids)
                if token_ids:
                    client = _outputs_for(outputs, request, step)
                    if has_logprobs:
                        client.add_logprobs(len(token_ids), result, row, is_first=is_first)
                    client.add_row(request.request_id, token_ids)
            if stop is not None or row in errors or (draws and not token_ids):
                any_finished = True
                # Without a token nothing would ever schedule it again.
                finished = self._finish_row(request, stop, errors.get(row, _NO_TOKEN), step)
                _outputs_for(outputs, request, step).finished.append(finished)
        self._live.note_prefilled()
        if any_finished:
            self._live.drop_finished()
        self._live.suspects.clear_passed(output.requests)
        return outputs

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
