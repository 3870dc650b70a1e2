"""Python's collector of cyclic garbage, for a process that serves for long.

Reference counts free what requests leave; the collector is for the few cycles among it. At its
defaults it looks every 700 objects that are new, which a step of many requests makes several
times, and again and again through all that a service has built at its start.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (5_000, 20, 20)
"""Each call over gRPC leaves a cycle of five objects with what they hold, about a kilobyte.

With 20,000 some MiB of it waited in a gateway, a twentieth of all its memory.
"""


def make_rare() -> None:
    """Have collections less often; the first thing that an entry point does.

    Imports make hundreds of thousands of objects that stay, among which there is nothing to find.
    """
    gc.set_threshold(*_THRESHOLDS)


def settle() -> None:
    """Leave what there is now out of collections for good, and have them rarely.

    For the moment when a service has what it needs and nobody waits yet: it collects once, however
    often it is called.
    """
    if gc.get_freeze_count():
        return
    gc.collect()
    gc.freeze()
    make_rare()
