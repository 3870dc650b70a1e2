"""Tests of the supervisor with tiny programs as children."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from pagewire.cli.child import ChildSpec, describe_exit
from pagewire.cli.supervisor import RestartPolicy, Supervisor

# os.write, because a signal may come in the middle of a print.
SLEEPER = """
import os, signal
def end(*_):
    os.write(1, b"terminated\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
os.write(1, b"up\\n")
while True:
    signal.pause()
"""
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"ignored\\n"))
os.write(1, b"up\\n")
while True:
    signal.pause()
"""
QUICK = RestartPolicy(max_deaths=3, first_delay_s=0.001, max_delay_s=0.004)


class Recorder:
    """Keeps what the supervisor tells, in order."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.restarts: list[tuple[str, str, float]] = []

    def line(self, child: str, line: str) -> None:
        self.lines.put_nowait((child, line))

    def restarting(self, child: str, reason: str, delay_s: float) -> None:
        self.restarts.append((child, reason, delay_s))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def supervise(recorder: Recorder, tmp_path: Path) -> AsyncIterator[Callable[..., Supervisor]]:
    """Start a supervisor of programs by name; all is killed at the end."""
    supervisors = []

    def start(policy: RestartPolicy = QUICK, **programs: str) -> Supervisor:
        specs = []
        for name, text in programs.items():
            file = tmp_path / f"{name}.py"
            file.write_text(text)
            specs.append(ChildSpec(name, (sys.executable, "-I", str(file))))
        supervisor = Supervisor(specs, {}, recorder, policy=policy)
        supervisor.start()
        supervisors.append(supervisor)
        return supervisor

    yield start
    for supervisor in supervisors:
        supervisor.kill()
        await supervisor.stop(0)


async def test_children_start_at_the_same_time(supervise, recorder):
    supervise(a=SLEEPER, b=SLEEPER)
    assert {await recorder.lines.get(), await recorder.lines.get()} == {("a", "up"), ("b", "up")}


async def test_a_killed_child_is_started_again(supervise, recorder):
    supervisor = supervise(a=SLEEPER)
    await recorder.lines.get()
    first = supervisor.pid("a")
    psutil.Process(first).kill()
    assert await recorder.lines.get() == ("a", "up")
    assert supervisor.pid("a") not in (None, first)
    assert recorder.restarts == [("a", "signal SIGKILL", 0.001)]


async def test_a_child_that_keeps_dying_is_given_up_after_growing_pauses(supervise, recorder):
    supervisor = supervise(a="raise SystemExit(3)")
    message = await supervisor.wait_failed()
    assert message == "the a died 3 times before it was ready, last with exit code 3"
    assert [delay for _, _, delay in recorder.restarts] == [0.001, 0.002]


async def test_one_of_several_goes_by_its_name(supervise):
    supervisor = supervise(**{"worker-1": "raise SystemExit(3)"})
    assert (await supervisor.wait_failed()).startswith("worker-1 died 3 times before")


async def test_deaths_outside_the_window_are_forgotten(recorder):
    times = iter([0.0, 100.0, 200.0, 201.0, 202.0])
    supervisor = Supervisor(
        [ChildSpec("a", (sys.executable, "-I", "-c", "raise SystemExit(3)"))],
        {},
        recorder,
        policy=QUICK,
        clock=lambda: next(times),
    )
    supervisor.mark_up()
    supervisor.start()
    assert "the a died 3 times within 60 s" in await supervisor.wait_failed()
    assert [delay for _, _, delay in recorder.restarts] == [0.001, 0.001, 0.001, 0.002]
    await supervisor.stop(0)


async def test_no_death_of_a_child_that_was_never_up_is_forgotten(recorder):
    """One that is killed whenever it loads its model lives longer than the window each time."""
    times = iter([0.0, 100.0, 200.0])
    supervisor = Supervisor(
        [ChildSpec(name, (sys.executable, "-I", "-c", SLEEPER)) for name in "ab"],
        {},
        recorder,
        policy=QUICK,
        clock=lambda: next(times),
    )
    supervisor.mark_up(["b"])
    supervisor.start()
    failed = asyncio.create_task(supervisor.wait_failed())
    while not failed.done():
        if (pid := supervisor.pid("a")) is not None:
            with contextlib.suppress(psutil.NoSuchProcess):  # the loop has not heard of its end yet
                psutil.Process(pid).kill()
        await asyncio.wait({failed}, timeout=0.01)
    assert failed.result() == "the a died 3 times before it was ready, last with signal SIGKILL"
    await supervisor.stop(0)


async def test_an_error_of_one_that_was_never_up_is_not_tried_again(supervise, recorder):
    """Others may be: the stack is ready with the first of several replicas."""
    supervisor = supervise(a=SLEEPER, b="import sys; print('error: no GPU'); sys.exit(1)")
    supervisor.mark_up(["a"])
    assert await supervisor.wait_failed() == "the b cannot start: no GPU"
    assert recorder.restarts == []


async def test_a_configuration_error_is_not_tried_again(supervise, recorder):
    supervisor = supervise(a="import sys; print('error: --x: no'); sys.exit(2)")
    supervisor.mark_up()
    assert await supervisor.wait_failed() == "the a cannot start: --x: no"
    assert recorder.restarts == []


async def test_an_error_before_the_stack_is_ready_is_not_tried_again(supervise, recorder):
    supervisor = supervise(a="import sys; print('error: no such model'); sys.exit(1)")
    assert await supervisor.wait_failed() == "the a cannot start: no such model"
    assert recorder.restarts == []


async def test_an_error_once_the_stack_was_ready_is_tried_again(supervise, recorder):
    supervisor = supervise(a="import sys; print('error: lost'); sys.exit(1)")
    supervisor.mark_up()
    assert "died 3 times" in await supervisor.wait_failed()
    assert recorder.restarts[0] == ("a", "exit code 1: lost", 0.001)


async def test_a_program_that_is_not_there_is_given_up(recorder):
    supervisor = Supervisor([ChildSpec("a", ("/nowhere/program",))], {}, recorder)
    supervisor.start()
    assert "cannot be started: No such file" in await supervisor.wait_failed()
    await supervisor.stop(0)


async def test_stop_ends_children_one_after_another_in_their_order(supervise, recorder):
    supervisor = supervise(b=SLEEPER, c=SLEEPER, a=SLEEPER)
    for _ in range(3):
        await recorder.lines.get()
    await supervisor.stop(30)
    ended = [recorder.lines.get_nowait() for _ in range(3)]
    assert ended == [("b", "terminated"), ("c", "terminated"), ("a", "terminated")]


async def test_stop_kills_a_child_that_does_not_end(supervise, recorder):
    supervisor = supervise(a=STUBBORN)
    await recorder.lines.get()
    process = psutil.Process(supervisor.pid("a"))
    await supervisor.stop(0.05)
    assert not process.is_running()
    assert recorder.lines.get_nowait() == ("a", "ignored")


async def test_kill_ends_a_stop_that_waits_for_a_stubborn_child(supervise, recorder):
    supervisor = supervise(a=STUBBORN)
    await recorder.lines.get()
    stopping = asyncio.create_task(supervisor.stop(3600))
    assert await recorder.lines.get() == ("a", "ignored")
    supervisor.kill()
    await stopping
    assert supervisor.pid("a") is None


async def test_kill_takes_what_a_child_started_along(supervise, recorder):
    supervisor = supervise(
        a="import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-I', '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    grandchild = psutil.Process(int((await recorder.lines.get())[1]))
    supervisor.kill()
    await supervisor.stop(0)
    gone, alive = psutil.wait_procs([grandchild], timeout=30)
    assert gone == [grandchild] and alive == []


async def test_no_child_is_restarted_while_it_stops(supervise, recorder):
    supervisor = supervise(a=STUBBORN)
    await recorder.lines.get()
    stopping = asyncio.create_task(supervisor.stop(3600))
    assert await recorder.lines.get() == ("a", "ignored")
    psutil.Process(supervisor.pid("a")).kill()
    await stopping
    assert recorder.restarts == []


async def test_a_child_that_dies_while_one_before_it_drains_is_replaced(supervise, recorder):
    supervisor = supervise(a=STUBBORN, b=SLEEPER)
    for _ in range(2):
        await recorder.lines.get()
    stopping = asyncio.create_task(supervisor.stop(3600))
    assert await recorder.lines.get() == ("a", "ignored")
    psutil.Process(supervisor.pid("b")).kill()
    assert await recorder.lines.get() == ("b", "up")
    psutil.Process(supervisor.pid("a")).kill()
    await stopping
    assert [name for name, _, _ in recorder.restarts] == ["b"]
    assert recorder.lines.get_nowait() == ("b", "terminated")


async def test_children_do_not_get_the_terminals_interrupt(supervise, recorder):
    supervisor = supervise(a="import os; print(os.getpid() == os.getsid(0), flush=True)" + SLEEPER)
    assert await recorder.lines.get() == ("a", "True")
    assert supervisor.pid("a") is not None


async def test_a_line_without_an_end_is_bounded(supervise, recorder):
    supervise(a="print('x' * 1_000_000, end='', flush=True)" + SLEEPER)
    _, line = await recorder.lines.get()
    assert 256 * 1024 <= len(line) < 512 * 1024


def test_pauses_double_up_to_their_limit():
    policy = RestartPolicy(first_delay_s=0.2, max_delay_s=1.0)
    assert [policy.delay_s(n) for n in (1, 2, 3, 4, 5)] == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_signal_numbers_are_told_by_name():
    assert describe_exit(-signal.SIGKILL) == "signal SIGKILL"
    assert describe_exit(4) == "exit code 4"
