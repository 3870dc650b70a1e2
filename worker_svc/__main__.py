"""Starts a worker: `python -m worker_svc`."""

from __future__ import annotations

import sys

from pagewire.kit import garbage, grpc_loop
from pagewire.kit.first_signals import end_on_sigterm


def main() -> int:
    end_on_sigterm()
    garbage.make_rare()
    grpc_loop.take_older()
    from pagewire.kit.config import load_config
    from pagewire.kit.server import run
    from worker_svc.config import WorkerConfig
    from worker_svc.server import serve

    return run(lambda: serve(load_config(WorkerConfig, prog="python -m worker_svc")))


if __name__ == "__main__":
    sys.exit(main())
