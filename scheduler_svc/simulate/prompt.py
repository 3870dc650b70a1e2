"""Prompts that are never held: token ids that are made when somebody iterates.

Two prompts begin alike exactly as far as their shared prefix says. It takes one token to tell
prompts apart, because block hashes are chained: a prefix starts with a token of its own, and so
does what follows it; the rest are the same few integers for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload

VOCAB_SIZE = 2**32
"""Token ids of the simulation; wide enough for a token of its own for every request."""
_FIRST_PREFIX_TOKEN = 2**30
_FIRST_REQUEST_TOKEN = 2**31


class LazyPrompt(Sequence[int]):
    """The prompt of one request: a shared prefix, then tokens that no other request has."""

    __slots__ = ("_filler", "_num_prefix", "_num_tokens", "_prefix_token", "_request_token")

    def __init__(
        self,
        filler: Sequence[int],
        num_tokens: int,
        *,
        request_number: int,
        prefix_number: int = 0,
        num_prefix_tokens: int = 0,
    ) -> None:
        """Describe a prompt.

        Args:
            filler: Small token ids, at least as many as the prompt has; shared by all.
            num_tokens: Length, prefix included.
            request_number: Differs between requests.
            prefix_number: Differs between prefixes.
            num_prefix_tokens: Length of the prefix, at most `num_tokens`.
        """
        self._filler = filler
        self._num_tokens = num_tokens
        self._num_prefix = num_prefix_tokens
        self._prefix_token = _FIRST_PREFIX_TOKEN + prefix_number
        self._request_token = _FIRST_REQUEST_TOKEN + request_number

    def __len__(self) -> int:
        return self._num_tokens

    def __iter__(self) -> Iterator[int]:
        num_own = self._num_tokens - self._num_prefix
        parts: list[Sequence[int] | Iterator[int]] = []
        if self._num_prefix:
            parts += [(self._prefix_token,), islice(self._filler, 1, self._num_prefix)]
        if num_own:
            parts += [(self._request_token,), islice(self._filler, 1, num_own)]
        return chain.from_iterable(parts)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return list(self)[index]


class PromptMaker:
    """Makes prompts from lengths and prefix names; owns the integers that they share."""

    def __init__(self, max_num_tokens: int) -> None:
        self._filler = list(range(max_num_tokens))
        self._prefix_numbers: dict[str, int] = {}

    def make(
        self, num_tokens: int, request_number: int, prefix_id: str | None, num_prefix_tokens: int
    ) -> LazyPrompt:
        """Describe the prompt of a request; `prefix_id` None: it shares nothing.

        Raises:
            ValueError: It is longer than the maker was built for.
        """
        if num_tokens > len(self._filler):
            raise ValueError(f"num_tokens={num_tokens}: must be at most {len(self._filler)}")
        if prefix_id is None:
            return LazyPrompt(self._filler, num_tokens, request_number=request_number)
        number = self._prefix_numbers.setdefault(prefix_id, len(self._prefix_numbers))
        return LazyPrompt(
            self._filler,
            num_tokens,
            request_number=request_number,
            prefix_number=number,
            num_prefix_tokens=min(num_prefix_tokens, num_tokens),
        )
