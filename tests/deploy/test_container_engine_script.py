"""scripts/container_engine.sh trusts a folder of its own alone: what is there, root runs."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.deploy.container_engine import ROOT

SCRIPT = ROOT / "scripts" / "container_engine.sh"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a socket, as an engine leaves it; whatever is asked there answers."""
    folder = tmp_path / "engine"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # paths of sockets are short
        try:
            listener.bind("docker.sock")
        finally:
            os.chdir(here)
    return folder


def run_script(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    docker = programs / "docker"
    docker.write_text("#!/bin/sh\nexit 0\n")
    docker.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PAGEWIRE_ENGINE_DIR": str(folder),
    }
    return subprocess.run(
        [str(SCRIPT), command], env=environment, capture_output=True, text=True, timeout=120
    )


def test_an_engine_in_a_folder_of_ours_is_used(folder: Path) -> None:
    done = run_script("env", folder)
    assert done.stdout == f"export DOCKER_HOST=unix://{folder}/docker.sock\n"


@pytest.mark.parametrize("way", ["others may write", "others may read", "a link", "above it"])
def test_an_engine_that_somebody_else_may_have_put_there_is_not(folder: Path, way: str) -> None:
    if way == "above it":
        folder.parent.chmod(0o777)
    elif way == "a link":
        link = folder.with_name("link")
        link.symlink_to(folder)
        folder = link
    else:
        folder.chmod(0o777 if way == "others may write" else 0o755)
    assert run_script("env", folder).stdout == ""
    done = run_script("down", folder)
    assert done.returncode == 1 and "not a folder of ours alone" in done.stderr
    assert (folder / "docker.sock").exists()


def test_without_a_folder_there_is_nothing_to_stop(tmp_path: Path) -> None:
    done = run_script("down", tmp_path / "none")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_default_is_no_folder_that_anybody_may_make() -> None:
    line = next(each for each in SCRIPT.read_text().splitlines() if each.startswith("dir="))
    default = Path(line.partition(":-")[2].rstrip("}"))
    assert not default.parent.stat().st_mode & 0o022, default
