"""What clients that do not read cost the others: gaps between tokens, and the gateway's memory.

    python benchmarks/slow_readers.py --output benchmarks/results/slow_readers-DATE.json

On the simulated worker, over HTTP: busy streams that read at once, idle streams that wait in the
queue behind them, and then the same with slow clients beside them, which send a request and read
nothing. Both phases have as many requests at the engine: in the first the slow ones read. The
client shares the machine with the stack.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from pagewire import __version__
from pagewire.cli.own_stack import OwnStack, start_own_stack
from pagewire.kit.machine import describe_machine

SLOW_RECEIVE_BYTES = 4096
MAX_TOKENS = 8000
SAMPLE_S = 0.5
READ_BYTES = 64 * 1024
START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase showed; times in milliseconds."""

    num_gaps: int
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    gateway_rss_before_mib: float
    gateway_rss_max_mib: float


class Reader:
    """Reads one stream as it comes and notes when."""

    def __init__(self) -> None:
        self.arrivals_s: list[float] = []
        self.started = asyncio.Event()

    async def run(self, url: str, body: bytes) -> None:
        async with connection(url, body) as (reader, _):
            while data := await reader.read(READ_BYTES):
                if b"data:" in data:
                    self.arrivals_s.append(time.perf_counter())
                    self.started.set()

    def gaps_s(self, start_s: float) -> list[float]:
        times = [at_s for at_s in self.arrivals_s if at_s >= start_s]
        return [after - before for before, after in pairwise(times)]


@asynccontextmanager
async def connection(
    url: str, body: bytes, receive_bytes: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Send a request; with little room for the answer, if the client is to be slow."""
    parts = urlsplit(url)
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
    limit = receive_bytes or READ_BYTES
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request_body(seed: int) -> bytes:
    body = {"prompt": [1000 + seed, 5, 6, 7], "max_tokens": MAX_TOKENS, "stream": True}
    return json.dumps(body | {"ignore_eos": True, "temperature": 1, "seed": seed}).encode()


async def hold(url: str, seed: int) -> None:
    """Send a request and read nothing, for good."""
    async with connection(url, request_body(seed), SLOW_RECEIVE_BYTES) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()


async def run_phase(
    url: str, gateway: psutil.Process, options: argparse.Namespace, *, are_slow: bool
) -> Phase:
    """Run all clients for `options.seconds`; only what comes then counts."""
    before = gateway.memory_info().rss
    readers = [Reader() for _ in range(options.busy)]
    others = [Reader() for _ in range(0 if are_slow else options.slow)]
    tasks = [
        asyncio.create_task(reader.run(url, request_body(number)))
        for number, reader in enumerate([*readers, *others])
    ]
    if are_slow:
        tasks += [asyncio.create_task(hold(url, options.busy + n)) for n in range(options.slow)]
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await asyncio.gather(*(reader.started.wait() for reader in readers))
        # Whoever comes from now on finds the batch full, and waits.
        first_idle = options.busy + options.slow
        tasks += [asyncio.create_task(hold(url, first_idle + n)) for n in range(options.idle)]
        async with asyncio.timeout(START_TIMEOUT_S):
            # Slow ones may have been ended already.
            await wait_live(url, options.busy + options.idle)
        largest, start_s = gateway.memory_info().rss, time.perf_counter()
        while time.perf_counter() < start_s + options.seconds:
            await asyncio.sleep(SAMPLE_S)
            largest = max(largest, gateway.memory_info().rss)
        gaps_s = sorted(gap for reader in readers for gap in reader.gaps_s(start_s))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Phase(
        num_gaps=len(gaps_s),
        gap_p50_ms=quantile_ms(gaps_s, 0.5),
        gap_p99_ms=quantile_ms(gaps_s, 0.99),
        gap_max_ms=quantile_ms(gaps_s, 1.0),
        gateway_rss_before_mib=mib(before),
        gateway_rss_max_mib=mib(largest),
    )


async def wait_live(url: str, number: int) -> None:
    """Wait until the gateway has so many requests in work."""
    async with httpx.AsyncClient(base_url=url, timeout=START_TIMEOUT_S) as client:
        while True:
            if (await client.get("/load")).json()["server_load"] >= number:
                return
            await asyncio.sleep(SAMPLE_S)


def quantile_ms(ordered_s: Sequence[float], share: float) -> float:
    index = min(len(ordered_s) - 1, int(share * len(ordered_s)))
    return round(ordered_s[index] * 1000, 2)


def mib(num_bytes: int) -> float:
    return round(num_bytes / 2**20, 1)


async def measure(stack: OwnStack, options: argparse.Namespace) -> dict[str, object]:
    gateway = find_gateway(stack)
    phases = {}
    for number in range(options.rounds):
        for name, are_slow in (("without", False), ("with", True)):
            phase = await run_phase(stack.http_url, gateway, options, are_slow=are_slow)
            phases[f"{name} slow readers, round {number + 1}"] = asdict(phase)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "load_average": list(os.getloadavg()),
        "pagewire": __version__,
        # Without the file that this goes into: its folder is of no use to anybody else.
        "options": {name: str(value) for name, value in vars(options).items() if name != "output"},
        "phases": phases,
    }


def find_gateway(stack: OwnStack) -> psutil.Process:
    """The gateway's process."""
    for process in psutil.Process(stack.process.pid).children():
        if "gateway" in process.cmdline():
            return process
    raise RuntimeError("the stack has no gateway")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--busy", type=int, default=200)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=45.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=2, help="of both phases")
    parser.add_argument("--step-time-us", type=int, default=100_000)
    parser.add_argument("--output", type=Path, help="file for the figures; default: print them")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, object]:
    options = parse_args(argv)
    flags = [
        "--model=smollm2",
        "--device=sim",
        f"--sim-step-time-us={options.step_time_us}",
        f"--max-num-seqs={options.busy + options.slow}",
    ]
    with start_own_stack(flags) as stack:
        result = asyncio.run(measure(stack, options))
    text = json.dumps(result, indent=2) + "\n"
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text)
    return result


if __name__ == "__main__":
    main()
