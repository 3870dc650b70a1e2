"""How many leading tokens of a prompt each replica has cached.

Hashes are those of the engine (`pagewire.block_hash`): the same tokens, salt and adapter. They are
made a few at a time, until nobody has the next block, so that a prompt that is new costs little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.routing.prefix_index import PrefixIndex
from pagewire.block_hash import hash_blocks

MAX_BLOCKS = 2048
"""Blocks of a prompt that are looked at, about 2 ms of hashing; beyond, all count as equal."""

_FIRST_CHUNK_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    """What the KV of a prompt depends on."""

    token_ids: Sequence[int]
    cache_salt: str = ""
    lora_digest: str = ""


def match_prefix(prompt: PromptPrefix, indexes: Sequence[PrefixIndex]) -> list[int]:
    """Return the number of leading tokens that each index has.

    It ends with the last full block before the prompt's last token, which an engine always
    computes.
    """
    matched = [0] * len(indexes)
    by_block_size: dict[int, list[int]] = defaultdict(list)
    for place, index in enumerate(indexes):
        if index.is_current and index.block_size > 0 and len(index):
            by_block_size[index.block_size].append(place)
    for block_size, places in by_block_size.items():
        alive = places
        for block_hash in prefix_hashes(prompt, block_size):
            alive = [place for place in alive if block_hash in indexes[place]]
            if not alive:
                break
            for place in alive:
                matched[place] += block_size
    return matched


def prefix_hashes(prompt: PromptPrefix, block_size: int) -> Iterator[bytes]:
    """Make the hashes of the blocks that may be cached, in order, in growing chunks."""
    num_blocks = min((len(prompt.token_ids) - 1) // block_size, MAX_BLOCKS)
    extra_keys = (f"lora:{prompt.lora_digest}",) if prompt.lora_digest else ()
    first_extra_keys = (f"salt:{prompt.cache_salt}",) if prompt.cache_salt else ()
    parent: bytes | None = None
    start, chunk = 0, _FIRST_CHUNK_BLOCKS
    while start < num_blocks:
        end = min(start + chunk, num_blocks)
        hashes = hash_blocks(
            parent,
            prompt.token_ids[start * block_size : end * block_size],
            block_size,
            extra_keys,
            first_extra_keys=first_extra_keys if start == 0 else (),
        )
        yield from hashes
        parent, start, chunk = hashes[-1], end, 2 * chunk
