"""One request's output tokens to text that may be shown.

Puts the incremental decoder and the stop strings together: prompt tokens are context only, stop
strings end the output at the token that completes them, and what may still change is held back.
Knows nothing of streams, frames or other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizer_svc.incremental_decoder import DecoderTables
from tokenizer_svc.stop_strings import StopStringMatcher

# Tokens of context that are looked at: enough for a character in pieces, and for a decoder that
# treats the first token of a sequence in its own way.
MAX_CONTEXT_TOKENS = 7


@dataclass(frozen=True, slots=True)
class DetokenizeOptions:
    """How one request's text is made."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    """Stop strings completed by one of the first `min_tokens` output tokens don't count."""
    context_token_ids: tuple[int, ...] = ()
    """The end of the prompt; never part of the text."""


class StopHit(NamedTuple):
    """A stop string was met."""

    stop_index: int
    num_tokens: int
    """Output tokens up to and with the one that completed it."""


class NewText(NamedTuple):
    """What one append brought."""

    text: str
    stop_hit: StopHit | None = None


class Detokenizer:
    """Invariants: text comes out once, in order; after a stop hit nothing more comes."""

    __slots__ = ("_decoder", "_matcher", "_min_tokens", "_stopped", "num_tokens")

    def __init__(self, tables: DecoderTables, options: DetokenizeOptions) -> None:
        self._decoder = tables.decoder(options.skip_special_tokens)
        self._matcher = (
            StopStringMatcher(options.stop, options.include_stop_str_in_output)
            if options.stop
            else None
        )
        self._min_tokens = options.min_tokens
        self._stopped = False
        self.num_tokens = 0
        self._decoder.prime(options.context_token_ids[-MAX_CONTEXT_TOKENS:])

    def append(
        self, token_ids: Sequence[int], *, last_is_stop_token: bool = False, end: bool = False
    ) -> NewText:
        """Take in output tokens.

        Args:
            token_ids: The next output tokens.
            last_is_stop_token: The last of them ended the request and is no text.
            end: Nothing more will come: everything held back comes out.
        """
        if self._stopped:
            return NewText("")
        text_ids = token_ids[:-1] if last_is_stop_token else token_ids
        before = self.num_tokens
        self.num_tokens += len(token_ids)
        if self._matcher is None:
            text = self._decoder.push(text_ids)
            return NewText(text + self._decoder.flush() if end else text)
        new = self._match(self._matcher, text_ids, before)
        if new.stop_hit is not None:
            self._stopped = True
            self.num_tokens = new.stop_hit.num_tokens
            return new
        if not end:
            return new
        return NewText(new.text + self._end(self._matcher))

    def _match(self, matcher: StopStringMatcher, token_ids: Sequence[int], before: int) -> NewText:
        shown: list[str] = []
        for num_tokens, token_id in enumerate(token_ids, before + 1):
            text = self._decoder.push((token_id,))
            if not text:
                continue
            matched = matcher.push(text, counts=num_tokens > self._min_tokens)
            shown.append(matched.text)
            if matched.stop_index is not None:
                return NewText("".join(shown), StopHit(matched.stop_index, num_tokens))
        return NewText("".join(shown))

    def _end(self, matcher: StopStringMatcher) -> str:
        # A character that stays incomplete cannot complete a stop string any more.
        incomplete = self._decoder.flush()
        return matcher.flush() + incomplete
