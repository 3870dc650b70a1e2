"""Makes the environments of third-party clients, and runs programs in them.

`python -m tests.clients.environments [NAME ...]` makes those that are missing, or made from another
list of packages. Each client of requirements/ has a virtual environment of its own,
`.venv-clients/NAME`, since what one needs excludes what another needs; npm's packages are in
`.venv-clients/npm-NAME`, from the lock files of npm/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.served import API_KEY, MODEL, Served

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
REQUIREMENTS = HERE / "requirements"
NPM = HERE / "npm"
NPM_PREFIX = "npm-"
SCRIPTS = HERE / "scripts"
TIMEOUT_S = 1200
# No client may ask a hub, nor tell anybody what it does.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
}


def names() -> list[str]:
    """All environments that there can be."""
    python = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    return python + sorted(NPM_PREFIX + path.name for path in NPM.iterdir() if path.is_dir())


def ready(name: str) -> Path | None:
    """Return the folder of an environment that fits its list of packages; None without one."""
    stamp = ENVIRONMENTS / name / "made-from"
    return stamp.parent if stamp.exists() and stamp.read_text() == _digest(name) else None


def make(name: str) -> None:
    """Make an environment anew.

    Raises:
        subprocess.CalledProcessError: Packages could not be installed; the installer has said why.
        FileNotFoundError: npm is not installed.
    """
    folder = ENVIRONMENTS / name
    shutil.rmtree(folder, ignore_errors=True)
    if name.startswith(NPM_PREFIX):
        folder.mkdir(parents=True)
        for file in ("package.json", "package-lock.json"):
            shutil.copy(_source(name).with_name(file), folder)
        command = ["npm", "ci", "--no-audit", "--no-fund"]
    else:
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        command = [*pip, "--disable-pip-version-check", "-r", str(_source(name))]
    subprocess.run(command, cwd=folder, check=True)
    (folder / "made-from").write_text(_digest(name))


def environment(name: str) -> Path:
    """Return the folder of an environment for a test, which is skipped without one."""
    folder = ready(name)
    if folder is None:
        pytest.skip(
            f"{name} is NOT tested, its environment is missing:"
            f" {sys.executable} -m tests.clients.environments {name}"
        )
    return folder


def run(command: Sequence[str], served: Served, folder: Path, **more: str) -> str:
    """Run a client's program in a folder; return what it printed.

    Args:
        command: Of the program and its arguments.
        served: The stack, which the program finds in its environment variables.
        folder: In which it runs.
        more: Further environment variables.
    """
    told = {"BASE_URL": served.base_url, "API_KEY": API_KEY, "MODEL": MODEL}
    env = {**os.environ, **QUIET, **{f"CLIENT_{key}": value for key, value in told.items()}, **more}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-8_000:]
    return done.stdout


def run_cases(name: str, served: Served, folder: Path) -> dict[str, Any]:
    """Run scripts/NAME_cases.py in its environment; return what each case saw, or its error."""
    python = str(environment(name) / "bin" / "python")
    found: dict[str, Any] = json.loads(
        run([python, str(SCRIPTS / f"{name}_cases.py")], served, folder)
    )
    return found


def seen(found: Mapping[str, Any], case: str) -> Any:
    """Return what a case saw; it fails where the case did."""
    assert "error" not in found[case], found[case]["error"]
    return found[case]["saw"]


def _source(name: str) -> Path:
    """Return the list of packages of an environment."""
    if name.startswith(NPM_PREFIX):
        return NPM / name.removeprefix(NPM_PREFIX) / "package-lock.json"
    return REQUIREMENTS / f"{name}.txt"


def _digest(name: str) -> str:
    return hashlib.sha256(_source(name).read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    wanted = parser.parse_args().names or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        parser.error(f"no such client: {', '.join(unknown)}; there are {', '.join(names())}")
    for name in wanted:
        if ready(name) is None:
            print(f"{name}: installing into {ENVIRONMENTS / name}", flush=True)
            make(name)


if __name__ == "__main__":
    try:
        main()
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
