"""The folder of a stack's sockets is for its owner alone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire.kit.sockets import make_runtime_dir

NOBODY = 65534
CONNECT = (
    "import socket, sys\n"
    "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
    "except PermissionError: sys.exit(13)\n"
)


@pytest.fixture
def listening(tmp_path: Path) -> tuple[Path, socket.socket]:
    # Everybody may enter what is above it, as it is with /tmp.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    path = make_runtime_dir(tmp_path) / "s.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    path.chmod(0o777)
    return path, listener


def test_only_its_owner_may_enter(listening: tuple[Path, socket.socket]) -> None:
    path, listener = listening
    with listener:
        folder = path.parent.stat()
        assert stat.S_IMODE(folder.st_mode) == 0o700
        assert folder.st_uid == os.getuid()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_cannot_connect(listening: tuple[Path, socket.socket]) -> None:
    path, listener = listening
    with listener:
        command = [sys.executable, "-S", "-c", CONNECT, str(path)]
        assert subprocess.run(command, check=False).returncode == 0
        # The interpreter may be where that user cannot go, so the system's is asked.
        command[0] = "/usr/bin/python3"
        if not Path(command[0]).exists():
            pytest.skip("no python that everybody may run")
        assert subprocess.run(command, user=NOBODY, check=False).returncode == 13
