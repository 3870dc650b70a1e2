"""`pagewire serve`: starts a whole stack, says when it is ready, and ends it without a trace.

Owns the order of events and what stands on standard output: one line, when the stack is ready.
Processes are the supervisor's, command lines the plan's (`pagewire.cli.stack`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace

from pagewire.cli.addresses import Addresses, choose_addresses
from pagewire.cli.console import Console
from pagewire.cli.installed import missing_service, missing_smg_proto
from pagewire.cli.ready import (
    GATEWAY_SERVICE,
    ready_line,
    tell_why_not_ready,
    wait_serving,
)
from pagewire.cli.replicas import ReplicaWatch
from pagewire.cli.stack import MODULES, plan_children, plan_environment
from pagewire.cli.stack_children import stack_children
from pagewire.cli.stack_config import ServeConfig, StackConfig
from pagewire.cli.supervisor import Supervisor
from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.lifecycle import (
    EXIT_INTERRUPTED,
    child_environment,
    exit_with_parent,
    watch_parent,
)
from pagewire.kit.lifecycle import run as run_process
from pagewire.kit.sockets import make_runtime_dir
from pagewire.kit.tasks import cancel_and_wait

# A child that drains for as long as it may still needs a moment to end; a gateway the longest, for
# its last words to clients that read slowly.
_DRAIN_MARGIN_S = 15.0
# After one was given up, the others have nothing left to finish.
_GIVEN_UP_TIMEOUT_S = 2.0


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    exit_with_parent()
    # This process starts children while it has a gRPC channel open; they are other programs, so
    # gRPC has nothing to prepare for them.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return run_process(
        lambda: serve(load_config(ServeConfig, prog="pagewire serve", argv=arguments))
    )


async def serve(config: ServeConfig) -> int:
    """Run the stack until a signal or a failure; return the exit code.

    Raises:
        ConfigError: A port is taken, a service is not installed, a folder cannot be used.
    """
    for module in MODULES.values():
        if (message := missing_service(module)) is not None:
            raise ConfigError(message)
    if config.stack.vllm_grpc_port is not None and (message := missing_smg_proto()) is not None:
        raise ConfigError(message)
    signals = StopSignals()
    console = _open_console(config.stack)
    runtime_dir = make_runtime_dir()
    try:
        num_workers = config.engine.parallel.world_size
        addresses = replace(
            choose_addresses(config.stack, runtime_dir, num_workers),
            is_https=config.gateway.ssl_certfile is not None,
        )
        environment = plan_environment(config, child_environment(runtime_dir))
        children = plan_children(config, addresses, environment)
        supervisor = Supervisor(children, environment, console)
        try:
            return await _run(config, addresses, supervisor, console, signals)
        finally:
            supervisor.kill()
            await supervisor.stop(0)
    finally:
        # Children remove their own sockets; one that was killed could not.
        shutil.rmtree(runtime_dir, ignore_errors=True)
        console.close()


class StopSignals:
    """SIGTERM, SIGINT and SIGHUP: the first one asks for a drain, the second for an end at once.

    The death of the process that this one was started for asks for an end at once, too.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        watch_parent(self._on_parent_death)

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def _on_parent_death(self) -> None:
        self.first.set()
        self.second.set()


async def _run(
    config: ServeConfig,
    addresses: Addresses,
    supervisor: Supervisor,
    console: Console,
    signals: StopSignals,
) -> int:
    """Run the started stack to its end; return the exit code."""
    replicas = ReplicaWatch(
        stack_children(config.stack.data_parallel_size, config.engine.parallel.world_size),
        addresses,
        supervisor.mark_up,
        console.say,
    )
    supervisor.start()
    # Not by its public port, which may want a certificate.
    target = addresses.admin_listen["gateway"]
    serving = asyncio.create_task(wait_serving(target, GATEWAY_SERVICE))
    telling = asyncio.create_task(tell_why_not_ready(target, GATEWAY_SERVICE, console.say))
    failed = asyncio.create_task(supervisor.wait_failed())
    stopped = asyncio.create_task(signals.first.wait())
    try:
        await asyncio.wait({serving, failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            await cancel_and_wait(telling)
            console.clear_progress()
            console.release()
            for address in addresses.vllm_grpc:
                console.say(f"pagewire: VllmEngine for smg: grpc://{address}")
            num_up = await replicas.begin()
            watching = asyncio.create_task(replicas.watch(num_up))
            print(_ready_line(config, addresses, num_up), flush=True)
            try:
                await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_and_wait(watching)
        if failed.done():
            console.gave_up(failed.result())
            await supervisor.stop(_GIVEN_UP_TIMEOUT_S)
            return 1
        return await _drain(config, supervisor, console, signals)
    finally:
        await cancel_and_wait(serving, telling, failed, stopped)


def _ready_line(config: ServeConfig, addresses: Addresses, num_up: int) -> str:
    return ready_line(
        addresses,
        config.engine.served_model_names[0],
        wants_key=bool(config.secrets.api_key or config.gateway.api_key_file),
        num_replicas=config.stack.data_parallel_size,
        num_up=num_up,
    )


async def _drain(
    config: ServeConfig, supervisor: Supervisor, console: Console, signals: StopSignals
) -> int:
    """End the children in order, or all at once when a second signal comes."""
    if config.stack.drain_timeout_s > 0:
        console.say("pagewire: draining; interrupt again to end at once")
    timeout_s = config.stack.drain_timeout_s + _DRAIN_MARGIN_S
    drained = asyncio.create_task(supervisor.stop(timeout_s))
    interrupted = asyncio.create_task(signals.second.wait())
    await asyncio.wait({drained, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    was_interrupted = not drained.done()
    if was_interrupted:
        supervisor.kill()
    await drained
    await cancel_and_wait(interrupted)
    return EXIT_INTERRUPTED if was_interrupted else 0


def _open_console(config: StackConfig) -> Console:
    try:
        return Console(verbose=config.verbose, log_dir=config.log_dir)
    except OSError as exc:
        raise ConfigError(f"--log-dir {config.log_dir}: {exc.strerror or exc}") from exc
