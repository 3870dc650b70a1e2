"""What the sampler reads of the kernel, on a made-up /proc and on the real one."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest

from pagewire import __version__
from pagewire.kit.loop_lag import Lag
from pagewire.kit.process_figures import ProcessSampler, Work, machine_name
from pagewire.kit.run_queue import RunQueueWait


def write_thread(tasks: Path, name: str, ran_ns: int, waited_ns: int) -> None:
    (tasks / name).mkdir(parents=True, exist_ok=True)
    (tasks / name / "schedstat").write_text(f"{ran_ns} {waited_ns} 5\n")


def test_the_waits_of_threads_add_up(tmp_path: Path) -> None:
    wait = RunQueueWait(tmp_path)
    write_thread(tmp_path, "1", 10, 100)
    write_thread(tmp_path, "2", 10, 50)
    assert wait.read_ns() == 150
    write_thread(tmp_path, "2", 20, 70)
    assert wait.read_ns() == 170


def test_what_a_thread_waited_stays_when_it_has_ended(tmp_path: Path) -> None:
    wait = RunQueueWait(tmp_path)
    write_thread(tmp_path, "1", 10, 100)
    write_thread(tmp_path, "2", 10, 50)
    wait.read_ns()
    shutil.rmtree(tmp_path / "2")
    assert wait.read_ns() == 150
    write_thread(tmp_path, "2", 1, 3)
    assert wait.read_ns() == 153
    write_thread(tmp_path, "2", 1, 1)  # another thread of that number
    assert wait.read_ns() == 154


def test_a_kernel_that_does_not_count_is_told_from_one_where_nothing_waited(
    tmp_path: Path,
) -> None:
    assert RunQueueWait(tmp_path / "none").read_ns() is None
    write_thread(tmp_path, "1", 0, 0)
    assert RunQueueWait(tmp_path).read_ns() is None
    write_thread(tmp_path, "1", 10, 0)
    assert RunQueueWait(tmp_path).read_ns() == 0


def test_a_thread_that_ends_while_it_is_read_is_passed_over(tmp_path: Path) -> None:
    write_thread(tmp_path, "1", 10, 4)
    (tmp_path / "2").mkdir()
    assert RunQueueWait(tmp_path).read_ns() == 4


def test_a_machine_has_a_name_that_tells_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/random"
    folder.mkdir(parents=True)
    names = set()
    for boot_id in ("first", "second", "first"):
        (folder / "boot_id").write_text(boot_id + "\n")
        names.add(machine_name(tmp_path))
    assert len(names) == 2
    assert not any("first" in name for name in names)
    assert machine_name(tmp_path / "none") == ""


async def test_figures_of_this_process() -> None:
    looked, go_on = asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        looked.set()
        go_on.clear()
        await go_on.wait()

    sampler = ProcessSampler(lambda: Lag(3, 2), lambda: 17, sleep=sleep)
    sampler.work = lambda: Work(num_threads=4, busy_ns=99, num_items=1)
    assert sampler.latest() is None
    running = asyncio.create_task(sampler.run())
    await looked.wait()
    figures = sampler.latest()
    assert figures is not None
    assert (figures.version, figures.machine) == (__version__, machine_name())
    assert (figures.loop_lag_max_ns, figures.loop_lag_mean_ns, figures.num_rpcs) == (3, 2, 17)
    work = (figures.num_work_threads, figures.work_ns, figures.num_work_items)
    assert work == (4, 99, 1)
    assert figures.rss_bytes > 1 << 20
    assert 1 <= figures.num_cpus <= len(os.sched_getaffinity(0))
    looked.clear()
    go_on.set()
    await looked.wait()
    later = sampler.latest()
    assert later is not None and later.cpu_ns > figures.cpu_ns
    assert later.uptime_ns > figures.uptime_ns
    running.cancel()


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel does not count waits"
)
def test_threads_that_want_the_same_core_wait() -> None:
    wait, stop = RunQueueWait(), threading.Event()
    before_ns = wait.read_ns()
    cores = os.sched_getaffinity(0)

    def spin() -> None:
        os.sched_setaffinity(0, {min(cores)})
        while not stop.is_set():
            sum(range(1000))

    # The interpreter's lock makes them take turns; each turn begins with a wait for the core.
    threads = [threading.Thread(target=spin) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert before_ns is not None
        while (wait.read_ns() or 0) == before_ns:
            pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()
