"""Canonical hashes of full KV blocks: the same in every process, machine and language.

A block is identified by its own tokens and everything before them, so its hash takes the parent's
hash in. The encoding is fixed bytes (no pickle, no random root): see docs/design/block-hash.md for
the layout and test vectors. The scheduler computes hashes; this module knows nothing of blocks,
pools or requests.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from sys import byteorder

_U32 = struct.Struct("<I")

BLOCK_HASH_VERSION = 1
"""Version of the encoding; it is part of the root hash, so that versions never mix."""

ROOT_HASH = hashlib.sha256(f"pagewire block hash {BLOCK_HASH_VERSION}".encode()).digest()
"""The parent of a request's first block: 32 bytes."""


def hash_block(
    parent: bytes | None, token_ids: Sequence[int], extra_keys: Iterable[str] = ()
) -> bytes:
    """Hash one full block.

    The digest is SHA-256 over: the parent's 32 bytes (`ROOT_HASH` for none); the number of tokens
    as u32; each token id as u32; then for each extra key its length in UTF-8 bytes as u32 and the
    bytes. All integers are little-endian.

    Args:
        parent: Hash of the block before, or None for the first block of a request.
        token_ids: The block's token ids, each in [0, 2**32).
        extra_keys: What else the KV depends on, in order: the adapter's content digest, and for
            the first block the cache salt. They are tagged by the caller (`"lora:..."`,
            `"salt:..."`), so that one kind cannot be taken for another.

    Returns:
        32 bytes.
    """
    return hash_blocks(parent, token_ids, len(token_ids), extra_keys)[0]


def hash_blocks(
    parent: bytes | None,
    token_ids: Sequence[int],
    block_size: int,
    extra_keys: Iterable[str] = (),
    *,
    first_extra_keys: Iterable[str] = (),
) -> list[bytes]:
    """Hash the full blocks of tokens in a row, as `hash_block` does each.

    Args:
        parent: Hash of the block before the first of them, or None.
        token_ids: Those after it; what is left over at the end belongs to no full block.
        block_size: Tokens in a block, at least 1.
        extra_keys: Of every block.
        first_extra_keys: Of the first of them besides, after those.

    Returns:
        32 bytes for each full block.
    """
    ids = array("I", token_ids)
    if byteorder == "big":
        ids.byteswap()
    data, num_bytes = ids.tobytes(), block_size * ids.itemsize
    count, keys = _U32.pack(block_size), b"".join(map(_encode_key, extra_keys))
    hashes: list[bytes] = []
    tail = keys + b"".join(map(_encode_key, first_extra_keys))
    digest = parent or ROOT_HASH
    for start in range(0, len(data) - num_bytes + 1, num_bytes):
        block = data[start : start + num_bytes]
        digest = hashlib.sha256(b"%b%b%b%b" % (digest, count, block, tail)).digest()
        hashes.append(digest)
        tail = keys
    return hashes


def _encode_key(key: str) -> bytes:
    encoded = key.encode()
    return _U32.pack(len(encoded)) + encoded
