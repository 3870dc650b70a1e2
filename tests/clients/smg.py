"""The gateway `smg` as a process, for tests: started, waited for, ended."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_TIMEOUT_S = 60.0


def smg_program() -> Path | None:
    """The program beside this Python's; None if it is not installed."""
    program = Path(sys.executable).with_name("smg")
    return program if program.exists() else None


@contextmanager
def running_smg(program: Path, worker: str, model: str, log: Path) -> Iterator[str]:
    """Run it in front of one engine; gives its URL once it serves the model.

    Args:
        program: See `smg_program`.
        worker: grpc://host:port of VllmEngine.
        model: Name that the engine serves it under.
        log: File for what it says.
    """
    port, metrics_port = _free_ports(2)
    command = [
        *(program, "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--worker-urls", worker),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
    ]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        _wait_serving(url, model, process, log)
        yield url
    finally:
        # It holds nothing that would want a slower end.
        process.kill()
        process.wait()


def _wait_serving(url: str, model: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it knows the model, and its tokenizer, which it loads later."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(base_url=url, timeout=10) as client:
        while not (_has(client, "/v1/models", model) and _has(client, "/v1/tokenizers", model)):
            assert process.poll() is None, f"smg ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"smg does not serve:\n{log.read_text()}"


def _has(client: httpx.Client, path: str, text: str) -> bool:
    try:
        response = client.get(path)
    except httpx.TransportError:
        return False
    return response.status_code == 200 and f'"{text}"' in response.text


def _free_ports(number: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
