"""What a step does to its requests all at once: the two loops that every running request is in.

They look at requests alone; blocks, budgets and queues are `step_planner`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.request import Request


def end_of_quiet_run(requests: Sequence[Request], start: int, limit: int) -> int:
    """Return where a run of quiet decodes ends that begins at `start`; at most at `limit`.

    A quiet decode computes its newest token alone in the next step, and its block tables stay as
    they are: so do nearly all running requests in nearly every step. Who ends the run may yet turn
    out to be one.
    """
    for index in range(start, min(limit, len(requests))):
        request = requests[index]
        num_tokens = request.num_computed_tokens + 1
        if (
            num_tokens >= request.num_quiet_tokens
            or num_tokens != len(request.all_token_ids) + request.num_output_placeholders
            or request.drafts is not None
        ):
            return index
    return min(limit, len(requests))


def advance_all(requests: Sequence[Request], num_new_tokens: Sequence[int]) -> list[bool]:
    """Count tokens as computed by the step just planned, by row.

    Returns:
        By row, whether the step draws the next token, which is a placeholder from now on.
    """
    draws = []
    for request, num_new in zip(requests, num_new_tokens, strict=True):
        num_computed_tokens = request.num_computed_tokens + num_new
        request.num_computed_tokens = num_computed_tokens
        num_placeholders = request.num_output_placeholders
        if num_computed_tokens < len(request.all_token_ids) + num_placeholders:
            draws.append(False)
        else:
            request.num_output_placeholders = num_placeholders + 1
            draws.append(True)
    return draws
