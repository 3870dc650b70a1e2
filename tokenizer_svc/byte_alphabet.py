"""The alphabet in which byte-level vocabularies spell bytes as printable characters.

Printable Latin-1 characters stand for themselves; the other bytes, in ascending order, are spelled
U+0100, U+0101 and so on (a space is U+0120). Knows nothing of tokens or models.
"""

from __future__ import annotations


def _spellings() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    moved = {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return [moved.get(byte, chr(byte)) for byte in range(256)]


SPELLINGS: tuple[str, ...] = tuple(_spellings())
"""Character of each byte."""

BYTES: dict[str, int] = {character: byte for byte, character in enumerate(SPELLINGS)}


def unspell(token: str) -> bytes:
    """Bytes of a byte-level token; a token with any other character is taken as plain text."""
    try:
        return bytes([BYTES[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")
