"""Our gateway, and `smg` (in Rust) in front of the same scheduler, in turns, over HTTP.

    python benchmarks/gateways.py --streams 1,64,256 --output benchmarks/results/gateways-DATE.json
    python benchmarks/gateways.py --step-time-us 20000

One stack with the simulated worker, whose scheduler serves both; prompts are words, as `smg` takes
no token ids, so both tokenize and detokenize: ours in a service of its own, which its figure `all`
has too. Measures are those of `control_plane`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvloop
from control_plane import RunningStack, make_parser, run_all
from measured_stack import MODEL_NAME, control_plane_flags, find_services, write_report

from pagewire.cli.own_stack import OwnStack, start_own_stack

_START_TIMEOUT_S = 60.0
_POLL_S = 0.1


def _free_ports(number: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def running_smg(engine_port: int) -> Iterator[tuple[str, int]]:
    """Run `smg` in front of an engine; gives its URL and process id once it answers."""
    program = Path(sys.executable).with_name("smg")
    if not program.exists():
        raise SystemExit("error: there is no smg beside this Python; see docs/smg.md")
    port, metrics_port = _free_ports(2)
    command = [
        *(str(program), "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--worker-urls", f"grpc://127.0.0.1:{engine_port}"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
        *("--log-level", "error"),
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_answering(url, process)
            yield url, process.pid
        finally:
            process.kill()
            process.wait()


def _wait_answering(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for a first answer: it knows the model and its tokenizer only after its port is open."""
    until_s = time.monotonic() + _START_TIMEOUT_S
    body = {"model": MODEL_NAME, "prompt": "Hello", "max_tokens": 1}
    with httpx.Client(base_url=url, timeout=10) as client:
        while time.monotonic() < until_s and process.poll() is None:
            try:
                if client.post("/v1/completions", json=body).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # nobody listens yet
            time.sleep(_POLL_S)
    raise SystemExit("error: smg did not answer")


def main(argv: Sequence[str] | None = None) -> dict[str, object]:
    parser = make_parser(__doc__)
    parser.add_argument("--step-time-us", type=int, default=0)
    parser.set_defaults(device="sim", protocols="http", text_prompts=True)
    options = parser.parse_args(argv)
    (engine_port,) = _free_ports(1)
    flags = [*control_plane_flags(options), f"--vllm-grpc-port={engine_port}"]
    with start_own_stack(flags) as stack, running_smg(engine_port) as (url, pid):
        pids = find_services(stack)
        behind = {name: pids[name] for name in ("scheduler", "worker")}
        stacks = [
            RunningStack("smg", OwnStack(url, "", stack.process), {"gateway": pid, **behind}),
            RunningStack("pagewire", stack, pids),
        ]
        results = uvloop.run(run_all(stacks, options))
    return write_report(options, results=results)


if __name__ == "__main__":
    main()
