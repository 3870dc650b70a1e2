"""Work on the device thread: order, results, failures, cancellation, end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from pagewire.kit.errors import ServiceUnavailableError
from tests.worker_svc.harness import wait
from worker_svc.device_thread import DeviceThread


@pytest.fixture
async def device() -> AsyncIterator[DeviceThread]:
    thread = DeviceThread(max_queued=2)
    thread.start()
    yield thread
    assert await thread.close(5)


class Gate:
    """Work that runs until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        wait(self.open)
        return "through"


async def test_work_runs_on_a_thread_of_its_own(device: DeviceThread) -> None:
    name = await device.run(lambda: threading.current_thread().name)
    assert name == "device"


async def test_work_runs_in_the_order_of_submission(device: DeviceThread) -> None:
    gate, order = Gate(), list[int]()
    first = device.submit(gate)
    await asyncio.to_thread(gate.entered.wait, 5)
    later = [device.submit(lambda i=i: order.append(i)) for i in range(2)]  # type: ignore[misc]
    gate.open.set()
    await asyncio.gather(first, *later)
    assert order == [0, 1]


async def test_what_work_raises_reaches_its_waiter(device: DeviceThread) -> None:
    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await device.run(fail)
    assert await device.run(lambda: 1) == 1


async def test_an_exit_raised_by_work_does_not_end_the_process(device: DeviceThread) -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit"):
        await device.run(leave)


async def test_the_queue_is_bounded(device: DeviceThread) -> None:
    gate = Gate()
    first = device.submit(gate)
    await asyncio.to_thread(gate.entered.wait, 5)
    queued = [device.submit(lambda: None) for _ in range(2)]
    with pytest.raises(ServiceUnavailableError):
        device.submit(lambda: None)
    gate.open.set()
    await asyncio.gather(first, *queued)


async def test_cancelled_work_that_has_not_begun_never_runs(device: DeviceThread) -> None:
    gate, ran = Gate(), list[int]()
    first = device.submit(gate)
    await asyncio.to_thread(gate.entered.wait, 5)
    dropped = device.submit(lambda: ran.append(1))
    dropped.cancel()
    gate.open.set()
    assert await first == "through"
    await device.run(lambda: None)
    assert ran == []


async def test_close_lets_running_work_end_and_drops_the_rest() -> None:
    device = DeviceThread()
    device.start()
    gate = Gate()
    running = device.submit(gate)
    await asyncio.to_thread(gate.entered.wait, 5)
    dropped = device.submit(lambda: None)
    closing = asyncio.create_task(device.close(5))
    with pytest.raises(asyncio.CancelledError):
        await dropped
    gate.open.set()
    assert await closing
    assert await running == "through"
    with pytest.raises(ServiceUnavailableError):
        device.submit(lambda: None)


async def test_close_gives_up_on_work_that_does_not_end() -> None:
    device = DeviceThread()
    device.start()
    gate = Gate()
    running = device.submit(gate)
    await asyncio.to_thread(gate.entered.wait, 5)
    assert not await device.close(0.01)
    gate.open.set()
    assert await running == "through"


async def test_idle_time_is_the_time_with_nothing_queued(device: DeviceThread) -> None:
    gate = Gate()
    first = device.submit(gate)
    await asyncio.to_thread(gate.entered.wait, 5)
    busy = device.submit(lambda: device.idle_ns)
    gate.open.set()
    await first
    assert await busy == 0
    assert await device.run(lambda: device.idle_ns) > 0
