"""The arithmetic of the simulated model: a chain over tokens, a sum over the chain, a choice.

Owns what the pages store and what the oracle computes without pages, so that the two agree by
construction. Knows nothing of blocks or steps. The numbers do not depend on the block size.

    chain(p)   = mix(chain(p - 1), token(p))        stored where token p's KV would be
    context(n) = sum of chain(p) * POWER^p, p < n   what attention over n tokens would see

With KV cache groups g = 0, 1, ... of windows w_g (0: all) a token has its chain in a slot of each:

    window(n, w) = sum of chain(p) * POWER^p, n - w <= p < n
    seen(p)      = sum of window(p, w_g - 1) * GROUP_FACTOR^g over all g with w_g > 0
    chain(p)     = mix(chain(p - 1) + seen(p), token(p))
    context(n)   = sum of window(n, w_g or n) * GROUP_FACTOR^g over all g

Where no group sees the token before (all w_g are 1), chain(p - 1) is CHAIN_START.
"""

from __future__ import annotations

from collections.abc import Iterator

MASK = 2**64 - 1
CHAIN_START = 0x6A09E667F3BCC908
"""The chain before the first token."""
POWER = 0x9E3779B97F4A7C15
"""Odd, so that every power of it is invertible modulo 2^64: no place in a sequence is lost."""
GROUP_FACTOR = 0xA0761D6478BD642F
"""Odd; tells the groups apart."""
_TOKEN_FACTOR = 0xD6E8FEB86659FD93
_CHAIN_FACTOR = 0xBF58476D1CE4E5B9


def next_chain(chain: int, token_id: int) -> int:
    """The chain after one more token."""
    mixed = ((chain ^ ((token_id + 1) * _TOKEN_FACTOR)) * _CHAIN_FACTOR) & MASK
    return mixed ^ (mixed >> 32)


def mix64(value: int) -> int:
    """A bijection of 64-bit integers in which every input bit reaches every output bit."""
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def powers(step: int = 1) -> Iterator[int]:
    """POWER^0, POWER^step, POWER^(2 step), ... modulo 2^64, without end."""
    factor, power = pow(POWER, step, 2**64), 1
    while True:
        yield power
        power = (power * factor) & MASK
