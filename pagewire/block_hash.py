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
    ids = array("I", token_ids)
    if byteorder == "big":
        ids.byteswap()
    digest = hashlib.sha256(parent or ROOT_HASH)
    digest.update(struct.pack("<I", len(ids)))
    digest.update(ids.tobytes())
    for key in extra_keys:
        encoded = key.encode()
        digest.update(struct.pack("<I", len(encoded)))
        digest.update(encoded)
    return digest.digest()
