"""The watchdog on a clock that tests move by hand."""

import asyncio

import pytest

from pagewire.kit.heartbeat import HEARTBEAT_INTERVAL_S, Watchdog, send_heartbeats


class ManualClock:
    """Time that passes only in `sleep`; `events` says what happens at which call of it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sleeps: list[float] = []
        self.extra_s: list[float] = []
        self.after = lambda: None

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds + (self.extra_s.pop(0) if self.extra_s else 0.0)
        self.after()


async def test_silence_for_the_timeout_expires():
    clock = ManualClock()
    silence_s = await Watchdog(10, clock, clock.sleep).wait_expired()
    assert silence_s == 10
    assert clock.sleeps == [10]


async def test_a_beat_moves_the_end():
    clock = ManualClock()
    watchdog = Watchdog(10, clock, clock.sleep)
    clock.now_s += 4
    watchdog.beat()
    clock.now_s += 3
    await watchdog.wait_expired()
    assert clock.now_s == 114


async def test_after_the_own_process_was_held_the_peer_gets_one_more_interval():
    clock = ManualClock()
    watchdog = Watchdog(10, clock, clock.sleep)
    clock.extra_s = [30.0]

    def frames_in_the_socket_are_read() -> None:
        if len(clock.sleeps) == 2:
            watchdog.beat()

    clock.after = frames_in_the_socket_are_read
    await watchdog.wait_expired()
    assert clock.sleeps == [10, HEARTBEAT_INTERVAL_S, 10]


async def test_a_peer_that_stays_silent_after_the_own_process_was_held_expires():
    clock = ManualClock()
    clock.extra_s = [30.0]
    silence_s = await Watchdog(10, clock, clock.sleep).wait_expired()
    assert silence_s == 40 + HEARTBEAT_INTERVAL_S


async def test_heartbeats_are_sent_until_sending_fails():
    clock = ManualClock()
    sent: list[float] = []

    async def send() -> None:
        sent.append(clock.now_s)
        if len(sent) == 3:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await send_heartbeats(send, 2.0, clock.sleep)
    assert sent == [102, 104, 106]


def test_a_timeout_must_be_positive():
    with pytest.raises(ValueError, match="must be positive"):
        Watchdog(0)


async def test_waiting_can_be_cancelled():
    task = asyncio.create_task(Watchdog(1000).wait_expired())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
