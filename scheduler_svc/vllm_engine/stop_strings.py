"""Stop strings found in the bytes of tokens.

The caller does the text and finds them too, but it goes on counting, and lets the engine go on,
until the engine stops; as vLLM's does. Text is what the tokens' bytes are in a row, special tokens
left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.vocabulary import Vocabulary


class StopStringMatcher:
    """Of one output. `push` it all tokens in order until one completes a stop string."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        stop: Sequence[str],
        min_tokens: int,
        *,
        skip_special_tokens: bool,
    ) -> None:
        """Start at the beginning of an output.

        Args:
            vocabulary: Of the model.
            stop: The strings, none of them empty.
            min_tokens: What one of the first so many tokens completes doesn't count.
            skip_special_tokens: Whether special tokens stand for no text.
        """
        self._token_bytes = vocabulary.token_bytes
        self._no_text = vocabulary.special_token_ids if skip_special_tokens else frozenset()
        self._stop = [text.encode() for text in stop]
        self._num_kept = max(map(len, self._stop)) - 1
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._tail = b""

    def push(self, token_ids: Sequence[int]) -> tuple[int, int] | None:
        """Look at the next tokens.

        Returns:
            (how many of them the output keeps, which stop string), None if none was completed.
        """
        for number, token_id in enumerate(token_ids, 1):
            self._num_tokens += 1
            index = self._push(self._bytes_of(token_id))
            if index is not None and self._num_tokens > self._min_tokens:
                return number, index
        return None

    def _push(self, new: bytes) -> int | None:
        """Return the stop string that ends first behind the known bytes; a tie: list order."""
        window, num_known = self._tail + new, len(self._tail)
        self._tail = window[-self._num_kept :] if self._num_kept else b""
        hits = []
        for index, stop in enumerate(self._stop):
            start = window.find(stop, max(0, num_known - len(stop) + 1))
            if start >= 0:
                hits.append((start + len(stop), index))
        return min(hits)[1] if hits else None

    def _bytes_of(self, token_id: int) -> bytes:
        # A model may have more logits than there are tokens.
        if token_id in self._no_text or token_id >= len(self._token_bytes):
            return b""
        return self._token_bytes[token_id]
