"""The worker as a process: its command line, its end, and that it needs no torch to simulate."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from pagewire.kit.channels import open_channel
from tests.worker_svc.harness import WAIT_S, Scheduler, new_request, sim_config, write_model

NO_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not here")
sys.meta_path.insert(0, Refuse())
import runpy
try:
    runpy.run_module("worker_svc", run_name="__main__")
finally:
    print("torch" in sys.modules, flush=True)
"""


async def run(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )


async def test_help_needs_no_torch() -> None:
    process = await run("-c", NO_TORCH, "--help")
    output, errors = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 0, errors
    assert b"--lease-timeout" in output
    assert output.strip().endswith(b"False")


async def test_a_wrong_setting_is_one_line() -> None:
    process = await run("-m", "worker_svc", "--lease-timeout", "0")
    _, errors = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 2
    assert b"--lease-timeout 0: must be in (0, 3600]" in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.parametrize("flags", [(), ("--preload",)])
async def test_a_simulated_worker_serves_steps_without_torch_and_ends_on_sigterm(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    config = sim_config(write_model(tmp_path))
    address = f"unix:{tmp_path}/worker.sock"
    process = await run(
        *("-c", NO_TORCH, "--listen", address, "--admin-listen", "none", "--metrics-port", "0"),
        *flags,
    )
    async with open_channel(address) as channel:
        await asyncio.wait_for(channel.channel_ready(), WAIT_S)
        stream = await Scheduler(channel, "s1").open(config)
        new = [new_request(1, [300, 301, 302], [1])]
        await stream.send_step(new_requests=new, handles=[1], num_scheduled_tokens=[3])
        assert len((await stream.read("output")).sampled_token_ids) == 1
        process.send_signal(signal.SIGTERM)
        await stream.end()
        output, errors = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 0, errors
    assert output.strip() == b"False"
    assert (b"device_not_prepared" in errors) == bool(flags)
    assert not (tmp_path / "worker.sock").exists()
