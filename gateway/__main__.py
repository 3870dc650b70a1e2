"""Starts the gateway: `python -m gateway`."""

from __future__ import annotations

import sys

from pagewire.kit import garbage, grpc_loop
from pagewire.kit.first_signals import end_on_sigterm


def main() -> int:
    end_on_sigterm()
    garbage.make_rare()
    grpc_loop.take_older()
    from gateway.config import GatewayConfig
    from gateway.server import serve
    from pagewire.kit.config import load_config
    from pagewire.kit.server import run

    return run(lambda: serve(load_config(GatewayConfig, prog="python -m gateway")))


if __name__ == "__main__":
    sys.exit(main())
