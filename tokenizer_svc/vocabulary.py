"""What each token id stands for: bytes, text, and whether it is special.

Reads the decoder of a tokenizer.json, which says how token strings turn into text, and gives tables
for incremental decoding, for logprobs and for grammars. Three kinds are told apart: byte-level,
byte fallback (SentencePiece-like), and everything else, which only the library itself decodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tokenizers import Tokenizer

from tokenizer_svc.byte_alphabet import BYTES, unspell

_ALPHABET = frozenset(BYTES)
_TRANSLATION = {ord(character): byte for character, byte in BYTES.items()}


class DecodingKind(Enum):
    """How token strings turn into text."""

    BYTE_LEVEL = "byte_level"
    BYTE_FALLBACK = "byte_fallback"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DecodingRule:
    """The decoder of a tokenizer.json."""

    kind: DecodingKind
    replacements: tuple[tuple[str, str], ...] = ()
    """Of byte fallback: (what, with what) within every token, in order."""
    stripped_character: str = ""
    strip_left: int = 0
    """Of byte fallback: most leading `stripped_character`s that the whole text loses."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tables indexed by token id; ids without a token have empty bytes and text None."""

    rule: DecodingRule
    token_bytes: tuple[bytes, ...]
    byte_tokens: Mapping[int, int]
    """Of byte fallback: id to the byte that it stands for."""
    special_ids: frozenset[int]
    texts: Mapping[int, str] = field(default_factory=dict)
    """Of byte fallback: id to text, byte tokens excepted."""

    @property
    def size(self) -> int:
        return len(self.token_bytes)

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes of a token; empty for an id that is not in the vocabulary."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""


def read_vocabulary(tokenizer: Tokenizer, decoder: Mapping[str, Any] | None) -> Vocabulary:
    """Build the tables.

    Args:
        tokenizer: The tokenizer.
        decoder: The `decoder` of its tokenizer.json.
    """
    rule = decoding_rule(decoder)
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab(True).items()}
    added = tokenizer.get_added_tokens_decoder()
    tokens.update({token_id: token.content for token_id, token in added.items()})
    special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    pieces = [b""] * (max(tokens, default=-1) + 1)
    byte_tokens: dict[int, int] = {}
    texts: dict[int, str] = {}
    for token_id, token in tokens.items():
        if rule.kind is DecodingKind.BYTE_LEVEL:
            pieces[token_id] = _byte_level_piece(token)
        elif rule.kind is DecodingKind.OTHER:
            pieces[token_id] = tokenizer.decode([token_id], skip_special_tokens=False).encode()
        elif (byte := byte_of_token(token)) is not None:
            byte_tokens[token_id], pieces[token_id] = byte, bytes([byte])
        else:
            texts[token_id] = _replace(token, rule.replacements)
            pieces[token_id] = texts[token_id].encode("utf-8", "replace")
    return Vocabulary(rule, tuple(pieces), byte_tokens, special_ids, texts)


def decoding_rule(decoder: Mapping[str, Any] | None) -> DecodingRule:
    """Recognize a decoder; one that we don't know in every detail is OTHER."""
    steps = _steps(decoder)
    if [step.get("type") for step in steps] == ["ByteLevel"]:
        return DecodingRule(DecodingKind.BYTE_LEVEL)
    replacements: list[tuple[str, str]] = []
    while steps and steps[0].get("type") == "Replace":
        pattern = steps.pop(0)
        what = pattern.get("pattern", {}).get("String")
        if what is None:
            return DecodingRule(DecodingKind.OTHER)
        replacements.append((what, pattern.get("content", "")))
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteFallback", "Fuse"]:
        return DecodingRule(DecodingKind.BYTE_FALLBACK, tuple(replacements))
    if kinds == ["ByteFallback", "Fuse", "Strip"] and not steps[-1].get("stop"):
        strip = steps[-1]
        return DecodingRule(
            DecodingKind.BYTE_FALLBACK, tuple(replacements), strip["content"], strip["start"]
        )
    return DecodingRule(DecodingKind.OTHER)


def byte_of_token(token: str) -> int | None:
    """The byte that a token like `<0x0A>` stands for; None for every other token."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _steps(part)]


def _byte_level_piece(token: str) -> bytes:
    # The same as `unspell`, at the speed that a vocabulary of 100,000 tokens needs.
    if _ALPHABET.issuperset(token):
        return token.translate(_TRANSLATION).encode("latin-1")
    return unspell(token)


def _replace(token: str, replacements: Sequence[tuple[str, str]]) -> str:
    for what, content in replacements:
        token = token.replace(what, content)
    return token
