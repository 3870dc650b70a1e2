"""Starts the tokenizer service: `python -m tokenizer_svc`."""

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
    from tokenizer_svc.config import TokenizerServiceConfig
    from tokenizer_svc.server import serve

    return run(lambda: serve(load_config(TokenizerServiceConfig, prog="python -m tokenizer_svc")))


if __name__ == "__main__":
    sys.exit(main())
