"""What deploy/ has for Prometheus and Grafana, read for tests, and Prometheus's own tools."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
JOBS = ("gateway", "tokenizer", "scheduler", "worker")

_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")
_JOB = re.compile(r'job=(~?)"([^"]*)"')


def tool(name: str) -> str:
    """Return the path of a program of Debian's package prometheus; without it, skip the test."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing, so monitoring is NOT tested: apt-get install prometheus")
    return path


def promtool(*arguments: str) -> str:
    """Run promtool beside the rules and return what it says."""
    command = [tool("promtool"), *arguments]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """Every query of every panel, with Grafana's variables filled in."""
    found = [
        target["expr"]
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    ]
    return [q.replace("$__rate_interval", "5m").replace("$model_name", ".*") for q in found]


def adapter_rules() -> dict[str, dict[str, Any]]:
    """What the autoscalers' adapter gives, by name."""
    given = yaml.safe_load((PROMETHEUS / "adapter.yaml").read_text())["externalRules"]
    return {rule["name"]["as"]: rule for rule in given}


def adapter_queries() -> dict[str, str]:
    """Every query of the adapter by the figure's name, as it asks for a namespace."""
    return {
        name: rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="pagewire"')
        for name, rule in adapter_rules().items()
    }


def selectors(query: str) -> Iterator[tuple[str, list[str]]]:
    """Each metric of a query, and the services that it is asked of."""
    for name, labels in _SELECTOR.findall(query):
        is_regex, job = _JOB.search(labels).groups()
        pattern = job if is_regex else re.escape(job)
        yield name, [each for each in JOBS if re.fullmatch(pattern, f"pagewire-{each}")]
