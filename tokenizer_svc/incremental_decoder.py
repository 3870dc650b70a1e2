"""Token ids to text, a few ids at a time, each id looked at once.

Three decoders behind one protocol. The byte-level one and the byte-fallback one work on tables of
the vocabulary; the window decoder asks the library again for the last few tokens. What comes out
does not depend on how the ids are cut into pushes, and equals the library's decoding of the whole;
with byte fallback, a run of byte tokens with an invalid byte keeps its valid characters (the
library replaces them all, which a stream cannot take back). Knows nothing of stop strings or
requests.
"""

from __future__ import annotations

from codecs import getincrementaldecoder, utf_8_decode
from collections.abc import Iterable, Sequence
from typing import Protocol

from tokenizers import Tokenizer

from tokenizer_svc.vocabulary import DecodingKind, Vocabulary

REPLACEMENT = "\ufffd"
# The window decoder gives up waiting for a character to complete after this many tokens.
MAX_HELD_TOKENS = 16


class IncrementalDecoder(Protocol):
    """Text of one growing sequence of token ids."""

    def prime(self, token_ids: Sequence[int]) -> None:
        """Take in what goes before the sequence, at its start only.

        It gives no text of its own, but a character that it leaves unfinished can be completed.
        """

    def push(self, token_ids: Sequence[int]) -> str:
        """Take in ids; returns the text that is complete now. Unknown ids are no text."""

    def flush(self) -> str:
        """What an incomplete end is worth: replacement characters, or nothing."""


class DecoderTables:
    """Makes decoders of one vocabulary; the tables are built once for all requests."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        # [special tokens kept, special tokens skipped]
        pieces = list(vocabulary.token_bytes)
        skipped = list(pieces)
        for token_id in vocabulary.special_ids:
            skipped[token_id] = b""
        self._pieces = (pieces, skipped)

    def decoder(self, skip_special_tokens: bool) -> IncrementalDecoder:
        """A decoder of a new sequence."""
        kind = self._vocabulary.rule.kind
        if kind is DecodingKind.BYTE_LEVEL:
            return ByteLevelDecoder(self._pieces[skip_special_tokens])
        if kind is DecodingKind.BYTE_FALLBACK:
            return ByteFallbackDecoder(self._vocabulary, skip_special_tokens)
        return WindowDecoder(self._tokenizer, skip_special_tokens)


class ByteLevelDecoder:
    """Tokens are bytes; text is their UTF-8, with the library's replacement characters."""

    __slots__ = ("_foreign", "_pending", "_pieces")

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        # The incomplete character at the end, at most 3 bytes.
        self._pending = b""
        # Replacement characters to come that stand for what went before the sequence.
        self._foreign = 0

    def prime(self, token_ids: Sequence[int]) -> None:
        self.push(token_ids)
        self._foreign = 1 if self._pending else 0

    def push(self, token_ids: Sequence[int]) -> str:
        pieces, size = self._pieces, len(self._pieces)
        data = self._pending + b"".join([pieces[i] for i in token_ids if i < size])
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return self._own(text) if self._foreign else text

    def flush(self) -> str:
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return self._own(text)

    def _own(self, text: str) -> str:
        own = _without_foreign(text, self._foreign)
        self._foreign = 0 if text else self._foreign
        return own


class ByteFallbackDecoder:
    """Tokens are text, or single bytes where a character has no token.

    `_pending` is the incomplete character at the end of a run of byte tokens, at most 3 bytes.
    """

    def __init__(self, vocabulary: Vocabulary, skip_special_tokens: bool) -> None:
        self._texts = vocabulary.texts
        self._byte_tokens = vocabulary.byte_tokens
        self._skipped = vocabulary.special_ids if skip_special_tokens else frozenset[int]()
        self._stripped_character = vocabulary.rule.stripped_character
        self._num_to_strip = vocabulary.rule.strip_left
        self._utf8 = getincrementaldecoder("utf-8")(errors="strict")
        self._pending = 0
        # Replacement characters to come that stand for what went before the sequence.
        self._foreign = 0

    def prime(self, token_ids: Sequence[int]) -> None:
        self.push(token_ids)
        self._foreign = self._pending

    def push(self, token_ids: Sequence[int]) -> str:
        return self._own("".join(self._parts(token_ids)))

    def flush(self) -> str:
        return self._own(self._end_of_run())

    def _own(self, text: str) -> str:
        if not text or not (self._foreign or self._num_to_strip):
            return text
        own = _without_foreign(text, self._foreign)
        self._foreign = 0
        return self._strip(own)

    def _parts(self, token_ids: Sequence[int]) -> Iterable[str]:
        for token_id in token_ids:
            if token_id in self._skipped:
                continue
            text = self._texts.get(token_id)
            if text is not None:
                if self._pending:
                    yield self._end_of_run()
                yield text
            elif (byte := self._byte_tokens.get(token_id)) is not None:
                yield self._byte(byte)

    def _byte(self, byte: int) -> str:
        try:
            text = self._utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            # An invalid prefix: it is replaced byte by byte, and this byte starts anew.
            held = self._end_of_run()
            return held + (self._byte(byte) if held else REPLACEMENT)
        self._pending = 0 if text else self._pending + 1
        return text

    def _end_of_run(self) -> str:
        self._utf8.reset()
        held, self._pending = self._pending, 0
        return REPLACEMENT * held

    def _strip(self, text: str) -> str:
        while self._num_to_strip and text:
            if not text.startswith(self._stripped_character):
                self._num_to_strip = 0
                break
            text = text[len(self._stripped_character) :]
            self._num_to_strip -= 1
        return text


class WindowDecoder:
    """Any decoder of the library: decodes the last few tokens with and without the new ones.

    The text of `ids[:read]` is out; `ids[:read]` is kept as context, because many decoders treat a
    sequence's first token in a way of its own.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._read = 0

    def prime(self, token_ids: Sequence[int]) -> None:
        self._ids = list(token_ids)
        self._read = len(self._ids)

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._advance(force=True)

    def _push_one(self, token_id: int) -> str:
        self._ids.append(token_id)
        return self._advance(force=len(self._ids) - self._read > MAX_HELD_TOKENS)

    def _advance(self, force: bool) -> str:
        before = self._decode(self._ids[: self._read])
        after = self._decode(self._ids)
        complete = len(after) > len(before) and not after.endswith(REPLACEMENT)
        if not complete and not force:
            return ""
        if len(after) > len(before):
            self._ids = self._ids[self._read :]
            self._read = len(self._ids)
            return after[len(before) :]
        # Tokens of no text, such as skipped ones: without them each push stays as cheap as before.
        # What came before them stays the context.
        del self._ids[self._read :]
        return ""

    def _decode(self, token_ids: list[int]) -> str:
        if not token_ids:
            return ""
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)


def _without_foreign(text: str, most: int) -> str:
    """`text` without up to `most` leading replacement characters."""
    for _ in range(most):
        text = text.removeprefix(REPLACEMENT)
    return text
