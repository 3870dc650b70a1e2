"""A service process that does nothing but live as one should: sockets, health, signals, parent.

`write_fake_services` makes folders that `python -m gateway` and so on find before the real ones,
so that the supervision of a stack is tested without its parts. As with the real ones, the gateway
is ready after all others. The environment variable
FAKE_<SERVICE> changes what one does: `fail` ends it with an error, `crash` with exit code 3,
`stubborn` makes it ignore SIGTERM, `starting` keeps the gateway from ever being ready.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from pagewire.cli.ready import wait_serving
from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.lifecycle import ShutdownSignal, exit_with_parent, run, shutdown_signal
from pagewire.kit.logs import configure_logging, get_logger
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.kit.tasks import cancel_and_wait
from tests.fakes.fake_gateway import running_gateway

MODULES = ("gateway", "tokenizer_svc", "scheduler_svc", "worker_svc")
SOURCE = "import sys; from tests.fakes.fake_service import main; sys.exit(main({!r}))\n"


def write_fake_services(folder: Path) -> Path:
    """Write the four modules into `folder` and return it."""
    for module in MODULES:
        (folder / module).mkdir(parents=True)
        (folder / module / "__init__.py").touch()
        (folder / module / "__main__.py").write_text(SOURCE.format(module))
    return folder


def main(module: str) -> int:
    exit_with_parent()
    configure_logging(module)
    return run(lambda: _serve(module))


async def _serve(module: str) -> int:
    behaviour = os.environ.get(f"FAKE_{module.upper()}")
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in sys.argv[1:] if "=" in flag)
    stop = shutdown_signal()
    if behaviour == "fail":
        raise FailedPreconditionError("there is no such model")
    if behaviour == "crash":
        return 3
    if behaviour == "stubborn":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    get_logger(module).info("worker_progress", stage="load_weights", done=1, total=2)
    get_logger(module).warning("a_warning", number=7)
    await _wait_peers(flags, stop)
    if module == "gateway":
        listen = f"{flags['host']}:{flags['grpc-port']}"
        serving, admin = behaviour != "starting", flags["admin-listen"]
        async with running_gateway(listen, serving=serving, admin_listen=admin):
            await stop
        return 0
    config = ServerConfig(listen=flags["listen"], admin_listen=flags["admin-listen"])
    server = ServiceServer(config, f"fake.{module}", [])
    await server.start()
    await stop
    await server.stop(0)
    return 0


async def _wait_peers(flags: dict[str, str], stop: ShutdownSignal) -> None:
    """Wait until the services that this one would call are up, or a signal came."""
    peers = [flags[name] for name in ("schedulers", "tokenizers", "workers") if name in flags]
    up = [asyncio.create_task(wait_serving(peer, "")) for peer in peers]
    stopping = asyncio.create_task(stop.wait())
    everything_up = asyncio.gather(*up)
    await asyncio.wait({everything_up, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await cancel_and_wait(*up, stopping)
