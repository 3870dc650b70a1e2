"""Starts a scheduler: `python -m scheduler_svc`."""

from __future__ import annotations

import sys

from pagewire.kit.config import load_config
from pagewire.kit.server import run
from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.server import serve


def main() -> int:
    return run(lambda: serve(load_config(SchedulerServiceConfig, prog="python -m scheduler_svc")))


if __name__ == "__main__":
    sys.exit(main())
