"""One of the n outputs of a Generate call: a request of the engine, and what came of it so far.

Tokens accumulate here up to the context's length, because the last message has them all.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.direct_client import DirectClient, DirectOutput
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.stop import FinishReason, Stop
from scheduler_svc.vllm_engine.stop_strings import StopStringMatcher

_ABORTED = Stop(FinishReason.ABORT)
_STOPPED = Stop(FinishReason.STOP)


class Choice:
    """Belongs to one call. `take` until there is an `end`; `close` in any case."""

    def __init__(
        self,
        index: int,
        client: DirectClient,
        request: EngineCoreRequest,
        stop_strings: StopStringMatcher | None,
    ) -> None:
        """Prepare the output.

        Args:
            index: Its number among the n.
            client: A client of its own.
            request: With the client's id.
            stop_strings: What ends it besides the engine, if anything does.
        """
        self.index = index
        self.request = request
        self.token_ids: list[int] = []
        self.logprobs: LogprobRows | None = None
        self.prompt_logprobs: LogprobRows | None = None
        self.num_cached_tokens = 0
        self.end: FinishedRequest | None = None
        self.matched_stop: int | None = None
        """Which stop string ended it, if one did."""
        self._client = client
        self._stop_strings = stop_strings

    def add(self) -> None:
        """Queue the request.

        Raises:
            PagewireError: It is refused.
        """
        self._client.add(self.request)

    def take(self) -> DirectOutput:
        """What is new since the last time; false if nothing is.

        Raises:
            PagewireError: The request failed, or the engine goes away.
        """
        output = self._client.take()
        self._cut_at_stop(output)
        self.token_ids += output.token_ids
        if output.num_cached_tokens is not None:
            self.num_cached_tokens = output.num_cached_tokens
        self.end = output.end
        return output

    def keep_logprobs(self, output: DirectOutput) -> None:
        """Keep what was taken for a message that has all of it."""
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if self.logprobs is None:
            self.logprobs = output.logprobs
        elif output.logprobs is not None:
            self.logprobs.extend(output.logprobs)

    def abort(self) -> None:
        """End the request; what is taken next has that end."""
        self._client.finish(_ABORTED)

    def close(self) -> None:
        """End the request if it has not ended, without a word; idempotent."""
        self._client.close()

    def _cut_at_stop(self, output: DirectOutput) -> None:
        """End the output with the token that completes a stop string."""
        hit = self._stop_strings.push(output.token_ids) if self._stop_strings else None
        if hit is None:
            return
        num_kept, self.matched_stop = hit
        end = output.end
        if end is None:
            self._client.finish(_STOPPED)
            end = self._client.take().end
        del output.token_ids[num_kept:]
        if output.logprobs is not None:
            output.logprobs = output.logprobs.first(num_kept)
        if end is not None:
            output.end = replace(
                end,
                reason=FinishReason.STOP,
                num_output_tokens=len(self.token_ids) + num_kept,
                eos_token_id=None,
                stop_token_id=None,
            )
