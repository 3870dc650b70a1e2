"""`pagewire simulate`: become `python -m scheduler_svc.simulate` with the same options."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pagewire.cli.installed import missing_service


def run(arguments: Sequence[str]) -> int:
    """Replace this process; returns only if the scheduler's folder is not installed."""
    if (message := missing_service("scheduler_svc")) is not None:
        print(f"error: {message}", file=sys.stderr)
        return 1
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "scheduler_svc.simulate", *arguments])
