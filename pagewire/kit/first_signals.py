"""What SIGTERM does to a process until it has handlers of its own. Imports nothing of pagewire.

The kernel drops signals without a handler for the first process of a container, so a SIGTERM that
comes while modules are still being imported would be lost, and the container be killed only after
its whole grace period. Entry points call `end_on_sigterm` before they import anything large.
"""

from __future__ import annotations

import os
import signal

_FIRST_PROCESS = 1


def end_on_sigterm() -> None:
    """End at once on SIGTERM, as any other process does; `shutdown_signal` takes over later."""
    if os.getpid() == _FIRST_PROCESS:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: object) -> None:
    os._exit(128 + number)
