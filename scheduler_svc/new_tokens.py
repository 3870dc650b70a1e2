"""What new tokens do to a request: they lengthen it, move its grammar on, and may end it."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.grammar import Grammar
from scheduler_svc.request import Request
from scheduler_svc.stop import FinishReason, Stop, check_stop

_COMPLETE = Stop(FinishReason.STOP)
_REFUSED = Stop(FinishReason.ERROR, error_reason="GRAMMAR_REFUSED")


def append_tokens(request: Request, token_ids: Sequence[int]) -> tuple[Sequence[int], Stop | None]:
    """Append tokens one by one up to the first that ends the output; the rest is dropped.

    Returns:
        The tokens that count, and the end if there is one.
    """
    for index, token_id in enumerate(token_ids):
        request.append_output_token(token_id)
        stop = check_stop(request.stop_rules, request.num_tokens, token_id)
        if request.grammar is not None:
            stop = _advance_grammar(request.grammar, token_id, stop)
        if stop is not None:
            return token_ids[: index + 1], stop
    return token_ids, None


def _advance_grammar(grammar: Grammar, token_id: int, stop: Stop | None) -> Stop | None:
    """Move the grammar on; one that is complete ends the output with `stop`, whatever else would.

    A worker that applies the masks never draws what the grammar refuses.
    """
    if not grammar.accept(token_id):
        return _REFUSED
    if not grammar.is_complete or (stop is not None and stop.reason is FinishReason.STOP):
        return stop
    return _COMPLETE
