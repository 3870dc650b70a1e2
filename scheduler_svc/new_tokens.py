"""What new tokens do to a request: they lengthen it, move its grammar on, and may end it."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.request import Request
from scheduler_svc.stop import FinishReason, Stop, check_stop

_COMPLETE = Stop(FinishReason.STOP)
# A worker that applies the masks never draws what the grammar refuses.
_REFUSED = Stop(
    FinishReason.ERROR,
    error_reason="GRAMMAR_REFUSED",
    message="structured_outputs: the output could not be kept to its form",
)


def append_tokens(request: Request, token_ids: Sequence[int]) -> tuple[Sequence[int], Stop | None]:
    """Append tokens one by one up to the first that ends the output; the rest is dropped.

    Returns:
        The tokens that count, and the end if there is one.
    """
    grammar = request.grammar
    for index, token_id in enumerate(token_ids):
        if grammar is not None and not grammar.accept(token_id):
            return token_ids[:index], _REFUSED
        request.append_output_token(token_id)
        stop = check_stop(request.stop_rules, request.num_tokens, token_id)
        if grammar is not None and grammar.is_complete:
            stop = _complete(stop)
        if stop is not None:
            return token_ids[: index + 1], stop
    return token_ids, None


def _complete(stop: Stop | None) -> Stop:
    """A grammar that is complete ends the output with `stop`, whatever else would."""
    return stop if stop is not None and stop.reason is FinishReason.STOP else _COMPLETE
