"""Signals, exit codes and the parent's death, with real processes."""

import os
import platform
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from pagewire.kit.lifecycle import (
    PARENT_PID_ENV,
    RUNTIME_DIR_ENV,
    child_environment,
    parent_is_gone,
    run,
)

SERVICE = """
    import asyncio, sys
    from pagewire.kit.logs import configure_logging
    from pagewire.kit.server import *

    async def serve(address):
        shutdown = shutdown_signal()
        exit_with_parent()
        configure_logging("test")
        server = ServiceServer(ServerConfig(listen=address), "x", [])
        await server.start()
        print("ready", flush=True)
        print("stopping for", await shutdown, flush=True)
        if "stubborn" in sys.argv:
            await asyncio.Event().wait()
        await server.stop(0)

    sys.exit(run(lambda: serve(sys.argv[1])))
"""

SUPERVISOR = """
    import os, pathlib, subprocess, sys
    from pagewire.kit.lifecycle import child_environment

    directory = pathlib.Path(sys.argv[2])
    child = subprocess.Popen(
        [sys.executable, "-c", sys.argv[1], f"unix:{directory}/s"],
        env=child_environment(directory),
    )
    child.wait()
"""

# Its main thread ends before the process does, as may happen to any process that is killed; here
# it does so at SIGUSR1.
SLOWLY_DYING_SUPERVISOR = """
    import ctypes, pathlib, signal, subprocess, sys, threading
    from pagewire.kit.lifecycle import child_environment

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    child = subprocess.Popen(
        [sys.executable, "-c", sys.argv[1]], env=child_environment(pathlib.Path(sys.argv[2]))
    )
    threading.Thread(target=threading.Event().wait).start()
    signal.sigwait({signal.SIGUSR1})
    sys_exit = {"x86_64": 60, "aarch64": 93}[sys.argv[3]]
    ctypes.CDLL(None).syscall(sys_exit, 0)
"""

ECHO = """
    import asyncio, sys
    from pagewire.kit.server import *

    async def serve():
        exit_with_parent()
        shutdown = shutdown_signal()
        loop = asyncio.get_running_loop()
        loop.add_reader(0, lambda: print(sys.stdin.readline(), end="", flush=True))
        print("ready", flush=True)
        print("stopping for", await shutdown, flush=True)

    sys.exit(run(serve))
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_main(body: str) -> tuple[int, str]:
    code = f"import sys\nfrom pagewire.kit.server import *\n{textwrap.dedent(body)}"
    process = start(f"{code}\nsys.exit(run(main))")
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_the_service_end_in_order(tmp_path, number):
    with start(SERVICE, f"unix:{tmp_path}/s") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"stopping for {number.name}\n"
        assert process.wait(60) == 0
        process.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_the_second_signal_ends_it_at_once_without_a_socket_file(tmp_path):
    with start(SERVICE, f"unix:{tmp_path}/s", "stubborn") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping for SIGTERM\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        process.stderr.read()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_child_dies_with_a_killed_supervisor_and_leaves_no_file(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    with start(SUPERVISOR, textwrap.dedent(SERVICE), str(directory)) as supervisor:
        assert supervisor.stdout.readline() == "ready\n"
        assert (directory / "s").exists()
        supervisor.kill()
        # The child holds the other end of this pipe, so its end is the end of the file.
        assert supervisor.stdout.read() == ""
        supervisor.stderr.read()
    assert not directory.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="needs its exit call")
def test_a_supervisor_is_not_dead_before_its_last_thread_is(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    arguments = (textwrap.dedent(ECHO), str(directory), platform.machine())
    with start(SLOWLY_DYING_SUPERVISOR, *arguments) as supervisor:
        assert supervisor.stdout.readline() == "ready\n"
        try:
            supervisor.send_signal(signal.SIGUSR1)
            while psutil.Process(supervisor.pid).status() != psutil.STATUS_ZOMBIE:
                os.sched_yield()
            # The child has its signal by now; more turns of its loop than it takes to handle it.
            for line in (f"{number}\n" for number in range(10)):
                supervisor.stdin.write(line)
                supervisor.stdin.flush()
                assert supervisor.stdout.readline() == line
        finally:
            supervisor.kill()
        assert supervisor.stdout.read() == ""
        supervisor.stderr.read()
    assert not directory.exists()


def test_a_config_error_is_one_line_and_exit_code_two():
    code, stderr = run_main("""
        from pagewire.kit.config import load_config

        def main():
            return load_config(ServerConfig, prog="x", argv=["--listen=bad"], env={})
    """)
    assert code == 2
    assert stderr.startswith("error: --listen bad: must be host:port")
    assert stderr.count("\n") == 1


def test_an_error_of_ours_is_one_line_and_exit_code_one():
    code, stderr = run_main("""
        from pagewire.kit.errors import NotFoundError

        async def main():
            raise NotFoundError("no such model")
    """)
    assert (code, stderr) == (1, "error: no such model\n")


def test_a_bug_is_logged_with_its_traceback_and_exit_code_one():
    code, stderr = run_main("""
        async def main():
            raise LookupError("a bug")
    """)
    assert code == 1
    assert "LookupError: a bug" in stderr


def test_the_coroutines_result_is_the_exit_code():
    code, stderr = run_main("""
        async def main():
            return 7
    """)
    assert (code, stderr) == (7, "")


def test_a_child_knows_its_parent_and_not_its_parents_configuration_file(monkeypatch):
    monkeypatch.setenv("PAGEWIRE_CONFIG", "x.yaml")
    environment = child_environment(Path("/run/x"))
    assert environment[PARENT_PID_ENV] == str(os.getpid())
    assert environment[RUNTIME_DIR_ENV] == "/run/x"
    assert "PAGEWIRE_CONFIG" not in environment


@pytest.mark.parametrize(("value", "gone"), [(str(os.getppid()), False), ("1000000000", True)])
def test_the_parent_is_gone_when_another_process_adopted_this_one(monkeypatch, value, gone):
    monkeypatch.setenv(PARENT_PID_ENV, value)
    assert parent_is_gone() is gone


def test_a_process_that_no_supervisor_started_has_no_parent_to_lose(monkeypatch):
    monkeypatch.delenv(PARENT_PID_ENV, raising=False)
    assert not parent_is_gone()


@pytest.mark.parametrize(("parent", "stays"), [(os.getppid(), True), (1 << 30, False)])
def test_the_last_child_removes_the_runtime_directory_of_a_dead_parent_only(
    tmp_path, monkeypatch, parent, stays
):
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setenv(RUNTIME_DIR_ENV, str(directory))
    monkeypatch.setenv(PARENT_PID_ENV, str(parent))

    async def main() -> int:
        return 0

    assert run(main) == 0
    assert directory.exists() == stays
