"""The command: builds replicas, runs the workload through them, prints and writes what came out."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagewire.kit.errors import InvalidRequestError
from scheduler_svc.simulate.config import SimulateConfig
from scheduler_svc.simulate.measures import Measures, Series
from scheduler_svc.simulate.plot import draw_svg
from scheduler_svc.simulate.report import format_report, make_report
from scheduler_svc.simulate.routing import RoundRobin
from scheduler_svc.simulate.simulation import Simulation
from scheduler_svc.simulate.step_time import Roofline
from scheduler_svc.simulate.trace import read_trace
from scheduler_svc.simulate.virtual_engine import VirtualEngine
from scheduler_svc.simulate.workload import generate

STDOUT = Path("-")


def run(config: SimulateConfig) -> int:
    """Simulate, print and write; returns the exit code.

    Raises:
        PagewireError: The model does not fit, or the trace is wrong.
    """
    measures, series, about, wall_s = simulate(config)
    report = make_report(measures, series, about, wall_s)
    if config.json == STDOUT:
        json.dump(report, sys.stdout)
        print()
    else:
        print(format_report(report, measures))
        if config.json is not None:
            _write(config.json, json.dumps(report) + "\n")
    if config.plot is not None:
        _write(config.plot, draw_svg(measures, series))
    return 0


def simulate(
    config: SimulateConfig,
) -> tuple[Measures, Sequence[Series], dict[str, Any], float]:
    """Run the workload; returns what was counted, curves by replica, the setting, seconds taken."""
    limits = config.limits()
    step_time = Roofline(config.hardware)
    replicas = [
        VirtualEngine(
            limits,
            step_time,
            max_steps_in_flight=config.max_steps_in_flight,
            rejects_when_full=config.when_full == "reject",
        )
        for _ in range(config.num_replicas)
    ]
    requests = (
        generate(config.workload, limits.max_model_len)
        if config.trace is None
        else read_trace(config.trace)
    )
    # The pools' blocks never go: the collector need not walk them again and again.
    gc.collect()
    gc.freeze()
    started = time.perf_counter()
    Simulation(replicas, RoundRobin()).run(requests)
    wall_s = time.perf_counter() - started
    gc.unfreeze()
    total = Measures()
    for replica in replicas:
        total.add(replica.close())
    about = {
        "gpu": f"{config.hardware.num_gpus}x{config.hardware.gpu}",
        "model": config.hardware.sim_model,
        "replicas": config.num_replicas,
        "kv_blocks": limits.num_blocks,
        "max_model_len": limits.max_model_len,
    }
    return total, [replica.series for replica in replicas], about, wall_s


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(
            f"{path}: {error.strerror}", reason="CANNOT_WRITE", field="output"
        ) from error
