"""The frames of an Execute stream as they come, with a span of each request that they name."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pagewire.kit.request_spans import RequestSpans
from pagewire.kit.spans import Spans
from worker_svc.execute_session import Frame, StepFrame
from worker_svc.step import SchedulerOutput


async def with_spans(frames: AsyncGenerator[Frame], spans: Spans) -> AsyncGenerator[Frame]:
    """Pass frames on; requests of sampled traces have a span while the worker knows them."""
    requests = RequestSpans(spans, "worker.request")
    async with aclosing(frames):
        try:
            async for frame in frames:
                if isinstance(frame.payload, StepFrame):
                    _note(requests, frame.payload.step)
                yield frame
        finally:
            requests.end_all()


def _note(requests: RequestSpans, step: SchedulerOutput) -> None:
    for handle in (*step.finished_handles, *step.preempted_handles):
        requests.end(handle)
    for new in step.new_requests:
        requests.begin(new.handle, new.traceparent, new.request_id)
        requests.note(
            new.handle,
            {
                "prompt_tokens": len(new.prompt_token_ids),
                "output_tokens_before": len(new.output_token_ids),
                "computed_tokens_before": new.num_computed_tokens,
            },
        )
