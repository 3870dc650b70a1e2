"""Starts a scheduler: `python -m scheduler_svc`."""

from __future__ import annotations

from pagewire.kit import garbage, grpc_loop
from pagewire.kit.first_signals import end_on_sigterm


def main() -> int:
    end_on_sigterm()
    garbage.make_rare()
    grpc_loop.take_older()
    from pagewire.kit.config import load_config
    from pagewire.kit.server import run
    from scheduler_svc.config import SchedulerServiceConfig
    from scheduler_svc.server import serve

    return run(lambda: serve(load_config(SchedulerServiceConfig, prog="python -m scheduler_svc")))


if __name__ == "__main__":
    exit_code = main()
    from pagewire.kit.lifecycle import exit_now

    # Not by sys.exit: that waits for a thread which may still compile a hostile form.
    exit_now(exit_code)
