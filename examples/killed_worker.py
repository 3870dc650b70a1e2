"""Kill a worker under load: streams pause and go on, and no token changes, repeats or goes missing.

Run `.venv/bin/python examples/killed_worker.py`; nothing else has to run. It starts two replicas on
the simulated worker, asks eight questions, and asks them again while it kills one of the workers.
On a real model: `--device cpu`. Linux only, for the way it finds the worker.
"""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from pagewire import AsyncClient

NUM_STREAMS = 8
NUM_TOKENS = 60


def start_stack(device: str) -> tuple[subprocess.Popen[str], str]:
    """Start two replicas; return the process and where its gRPC API is."""
    flags = [f"--device={device}", "--data-parallel-size=2", "--http-port=0", "--grpc-port=0"]
    if device == "sim":
        flags.append("--sim-step-time-us=20000")  # else all is over before anything can be killed
    stack = subprocess.Popen(
        [sys.executable, "-m", "pagewire.cli", "serve", *flags, "--routing-policy=round-robin"],
        stdout=subprocess.PIPE,
        text=True,
    )
    ready = re.search(r"and (\S+) \(gRPC\)", stack.stdout.readline() if stack.stdout else "")
    if ready is None:
        raise SystemExit("the stack did not start")
    return stack, ready[1]


def worker_pids(supervisor: int) -> list[int]:
    """Return the processes of the stack that run a worker."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return [
        int(pid) for pid in children if b"worker_svc" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


async def ask_all(address: str, kill: int | None = None) -> list[str]:
    """Stream all answers at once; kill the process when each has begun and none has ended."""
    begun, ended = asyncio.Barrier(NUM_STREAMS + 1), 0

    async def ask(client: AsyncClient, number: int) -> str:
        nonlocal ended
        text, has_begun = "", False
        async with client.generate_stream(
            f"Question {number}:",
            seed=number,
            temperature=0.8,
            max_tokens=NUM_TOKENS,
            ignore_eos=True,
        ) as stream:
            async for delta in stream:
                if not has_begun:
                    has_begun = True
                    await begun.wait()
                text += delta.text
        ended += 1
        return text

    async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(client, number)) for number in range(NUM_STREAMS)]
        await begun.wait()
        if kill is not None:
            os.kill(kill, signal.SIGKILL)
            print(f"killed worker {kill}; {ended} of {NUM_STREAMS} answers had ended")
    return [task.result() for task in tasks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="sim")
    stack, address = start_stack(parser.parse_args().device)
    try:
        undisturbed = asyncio.run(ask_all(address))
        disturbed = asyncio.run(ask_all(address, kill=worker_pids(stack.pid)[0]))
    finally:
        stack.terminate()
        stack.wait()
    same = sum(a == b for a, b in zip(undisturbed, disturbed, strict=True))
    print(f"{same} of {NUM_STREAMS} answers are the same as without the kill")
    raise SystemExit(0 if same == NUM_STREAMS else 1)


if __name__ == "__main__":
    main()
