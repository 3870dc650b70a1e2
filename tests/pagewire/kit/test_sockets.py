"""Socket files and runtime directories: who removes what."""

import os
import socket
import stat

import pytest

from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.sockets import (
    RUNTIME_DIR_ENV,
    SocketFiles,
    make_runtime_dir,
    remove_runtime_dir,
)

# Beyond the largest process id of Linux.
DEAD_PID = 2**22 + 1


def bind(path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


def test_a_file_that_is_no_socket_is_never_unlinked(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(FailedPreconditionError, match="is no socket"):
        SocketFiles().prepare(path)
    assert path.read_text() == "data"


def test_a_file_that_another_process_put_there_is_left_alone(tmp_path):
    path, files = tmp_path / "s", SocketFiles()
    with bind(path):
        files.add(path)
        path.rename(tmp_path / "moved")
        with bind(path):
            files.remove(path)
            assert path.exists()


def test_remove_all_unlinks_every_file(tmp_path):
    files = SocketFiles()
    with bind(tmp_path / "a"), bind(tmp_path / "b"):
        files.add(tmp_path / "a")
        files.add(tmp_path / "b")
        files.remove_all()
    assert list(tmp_path.iterdir()) == []


def test_the_runtime_directory_stays_for_others_when_its_only_socket_goes(tmp_path, monkeypatch):
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setenv(RUNTIME_DIR_ENV, str(directory))
    files = SocketFiles()
    with bind(directory / "a"):
        files.add(directory / "a")
        files.remove_all()
    assert list(directory.iterdir()) == []


def test_any_other_directory_stays(tmp_path):
    with bind(tmp_path / "a"):
        files = SocketFiles()
        files.add(tmp_path / "a")
        files.remove_all()
    assert tmp_path.exists()


def test_a_runtime_directory_is_private_and_its_maker_removes_it(tmp_path):
    directory = make_runtime_dir(tmp_path)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    remove_runtime_dir(directory)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_directory(tmp_path):
    directory = make_runtime_dir(tmp_path)
    bind(directory / "killed").close()
    with bind(directory / "alive"):
        remove_runtime_dir(directory)
        assert len(list(directory.iterdir())) == 2
    remove_runtime_dir(directory)
    assert list(tmp_path.iterdir()) == []


def test_directories_of_dead_stacks_are_swept(tmp_path):
    dead = tmp_path / f"pagewire-{DEAD_PID}-x"
    dead.mkdir()
    bind(dead / "s").close()
    directory = make_runtime_dir(tmp_path)
    assert list(tmp_path.iterdir()) == [directory]


def test_directories_that_may_be_in_use_are_not_swept(tmp_path):
    living = tmp_path / f"pagewire-{os.getpid()}-x"
    served = tmp_path / f"pagewire-{DEAD_PID}-served"
    with_data = tmp_path / f"pagewire-{DEAD_PID}-data"
    foreign = tmp_path / "pagewire-notes-x"
    for directory in (living, served, with_data, foreign):
        directory.mkdir()
    (with_data / "notes").write_text("keep")
    with bind(served / "s"):
        make_runtime_dir(tmp_path)
    assert all(directory.exists() for directory in (living, served, with_data, foreign))
