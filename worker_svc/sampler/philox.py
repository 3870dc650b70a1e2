"""Philox4x32-10 and the uniforms of draws: pure functions of (seed, output index, purpose).

Owns the mapping that docs/design/draws.md writes down with its test vectors; changing it changes
every sampled answer. Knows nothing of logits. Vectorized numpy, one element a draw.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""32-bit words, each in a 64-bit integer so that products don't overflow."""

NUM_ROUNDS = 10
_MASK = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.array([[0xD251_1F53], [0xCD9E_8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E37_79B9], [0xBB67_AE85]], dtype=np.uint64)


class DrawPurpose(IntEnum):
    """What a draw is for: draws of one request and output index that must not be the same."""

    TOKEN = 0


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> list[Words]:
    """Ten rounds of Philox4x32 on each element; words in, words out."""
    # A round multiplies words 0 and 2 and mixes the products into each other's places.
    evens, odds, keys = np.stack(counter[::2]), np.stack(counter[1::2]), np.stack(key)
    for _ in range(NUM_ROUNDS):
        products = _MULTIPLIERS * evens
        evens = (products >> _HALF)[::-1] ^ odds ^ keys
        odds = (products & _MASK)[::-1]
        keys = (keys + _KEY_STEPS) & _MASK
    return [evens[0], odds[0], evens[1], odds[1]]


def uniforms(
    seeds: npt.NDArray[np.uint64],
    output_indices: npt.NDArray[np.uint64],
    purpose: DrawPurpose = DrawPurpose.TOKEN,
) -> npt.NDArray[np.float64]:
    """One uniform strictly inside (0, 1) for each (seed, output index): an odd multiple of 2**-53.

    Args:
        seeds: 64-bit seeds; a negative seed is its two's complement.
        output_indices: Number of output tokens before the one that is drawn.
        purpose: What the draw is for.
    """
    zeros = np.zeros_like(seeds)
    counter = (
        output_indices & _MASK,
        output_indices >> _HALF,
        zeros + np.uint64(purpose),
        zeros,
    )
    word0, word1, _, _ = philox4x32(counter, (seeds & _MASK, seeds >> _HALF))
    bits = ((word0 << _HALF) | word1) >> np.uint64(11)
    # Odd: neither 0 nor, once scaled, 1; and all of its 53 bits fit in a float64.
    return (bits | np.uint64(1)).astype(np.float64) * 2.0**-53
