"""What benchmarks of a whole stack have in common: how it is started, its processes, what is noted.

Scripts beside this file import it. It measures nothing itself.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from pathlib import Path
from typing import Any

from pagewire import __version__
from pagewire.cli.bench.openai_target import OpenAITarget
from pagewire.cli.own_stack import OwnStack
from pagewire.kit.machine import describe_machine

SERVICES = {
    "gateway": "gateway",
    "tokenizer_svc": "tokenizer",
    "scheduler_svc": "scheduler",
    "worker_svc": "worker",
}
"""Modules of the services, and what figures call them."""
MODEL_NAME = "measured"
MAX_MODEL_LEN = 2048
"""Of stacks whose worker computes next to nothing."""
TIMEOUT_S = 600.0
"""Of a request."""


def model_flags(model: str) -> list[str]:
    """Return the flags of `pagewire serve` that name the model."""
    return [f"--model={model}", f"--served-model-name={MODEL_NAME}"]


def control_plane_flags(options: argparse.Namespace) -> list[str]:
    """Return the flags of a stack whose worker computes next to nothing.

    Args:
        options: With `model`, `device`, `step_time_us`, and the numbers of `streams`.
    """
    return [
        *model_flags(options.model),
        f"--device={options.device}",
        f"--sim-step-time-us={options.step_time_us}",
        f"--max-num-seqs={max(map(int, options.streams.split(',')))}",
        f"--max-model-len={MAX_MODEL_LEN}",
    ]


def find_services(stack: OwnStack) -> dict[str, int]:
    """Return the process of each service of a stack."""
    pid = stack.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    found = {}
    for child in map(int, children.split()):
        words = Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").split("\0")
        found |= {name: child for module, name in SERVICES.items() if module in words}
    return found


def completions_target(stack: OwnStack) -> OpenAITarget:
    """Return a client of the stack's /v1/completions that asks for outputs of full length."""
    return OpenAITarget(
        stack.http_url,
        MODEL_NAME,
        is_chat=False,
        ignore_eos=True,
        extra_body={},
        api_key=None,
        timeout_s=TIMEOUT_S,
    )


def when_and_where() -> dict[str, Any]:
    """Return what every result says of its making."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "load_average": list(os.getloadavg()),
        "pagewire": __version__,
    }


def write_report(options: argparse.Namespace, **figures: object) -> dict[str, object]:
    """Return a result with the options of its making; write it where `output` says, if it does."""
    told = {name: str(value) for name, value in vars(options).items() if name != "output"}
    report = {**when_and_where(), "options": told, **figures}
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=2) + "\n")
    return report
