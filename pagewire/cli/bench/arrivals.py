"""When requests come: all at once, or at random at a rate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate, chain, repeat


def arrival_times(rate: float | None, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Yield seconds after the start, without an end; the first one is 0.

    Args:
        rate: Requests a second on average; None: all come at once.
        burstiness: Shape of the gamma distribution of the gaps. 1: a Poisson process. Below it they
            come in bursts, far above it evenly.
        rng: Draws the gaps.
    """
    if rate is None:
        return repeat(0.0)
    scale_s = 1 / (rate * burstiness)
    gaps = iter(lambda: rng.gammavariate(burstiness, scale_s), None)
    return accumulate(chain((0.0,), gaps))
