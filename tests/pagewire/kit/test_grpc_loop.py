"""The older of gRPC's event loops: chosen in time by every entry point, and really used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MODULES = ["gateway", "tokenizer_svc", "scheduler_svc", "worker_svc", "pagewire.cli"]
OLDER = "-event_engine_listener,-event_engine_client"

# Says what the environment is when gRPC is imported.
AT_IMPORT = """
import os, runpy, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "grpc":
            print("at import", os.environ.get("GRPC_EXPERIMENTS"))
            sys.meta_path.remove(self)
sys.meta_path.insert(0, Watch())
sys.argv = [sys.argv[1], *sys.argv[2:]]
runpy.run_module(sys.argv[0], run_name="__main__")
"""
CALLS = """
import asyncio, sys
from pathlib import Path
from pagewire.kit import grpc_loop
if sys.argv[1] == "older":
    grpc_loop.take_older()
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
def num_waits():
    total = 0
    for path in Path("/proc/self/task").iterdir():
        try:
            is_grpcs = (path / "comm").read_text().startswith("event_engine")
            _, _, text = (path / "status").read_text().partition("\\nvoluntary_ctxt_switches:")
        except OSError:
            continue  # it has ended
        total += int(text.split()[0]) if is_grpcs else 0
    return total
async def main():
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        before = num_waits()
        for _ in range(200):
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        print(num_waits() - before)
    await server.stop(None)
asyncio.run(main())
"""


def run(program: str, *arguments: str, **environment: str) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("module", MODULES)
def test_each_entry_point_chooses_before_grpc_is_imported(module: str) -> None:
    arguments = ["map", "--help"] if module == "pagewire.cli" else ["--help"]
    assert run(AT_IMPORT, module, *arguments)[0] == f"at import {OLDER}"


def test_what_the_environment_says_stays() -> None:
    lines = run(AT_IMPORT, "tokenizer_svc", "--help", GRPC_EXPERIMENTS="-tcp_rcv_lowat")
    assert lines[0] == "at import -tcp_rcv_lowat"


def test_the_older_loop_wakes_no_threads_of_its_own() -> None:
    older, newer = (int(run(CALLS, which)[0]) for which in ("older", "newer"))
    # Of the older one only those that look at timers now and then.
    assert 5 * max(older, 1) < newer
