"""Runs a simulation: `python -m scheduler_svc.simulate`."""

from __future__ import annotations

import os
import sys

from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.errors import PagewireError
from scheduler_svc.simulate.command import run
from scheduler_svc.simulate.config import SimulateConfig


def main() -> int:
    try:
        return run(load_config(SimulateConfig, prog="pagewire simulate"))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except PagewireError as error:
        print(f"error: {error.message}", file=sys.stderr)
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter must not try to flush at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    sys.exit(main())
