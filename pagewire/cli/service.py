"""`pagewire gateway|tokenizer|scheduler|worker`: become `python -m <module>` with the same options.

The process is replaced, so signals, exit code and process id are the service's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pagewire.cli.installed import missing_service


def run(arguments: Sequence[str]) -> int:
    """Replace this process by the service; returns only if the service is not installed."""
    module, *options = arguments
    if (message := missing_service(module)) is not None:
        print(f"error: {message}", file=sys.stderr)
        return 1
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *options])
