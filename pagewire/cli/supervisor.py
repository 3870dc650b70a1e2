"""Keeps a set of child processes alive: restarts with backoff, gives up, ends them in order.

It knows nothing of what the children are. `pagewire serve` gives it the four services; tests give
it tiny programs. One task a child owns that child's process from start to end.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagewire.cli.child import ChildProcess, ChildSpec, describe_exit, in_words
from pagewire.kit.config import ConfigError
from pagewire.kit.tasks import TaskOwner

# A killed process ends at once, unless the kernel holds it (a device that does not answer).
_KILLED_TIMEOUT_S = 10.0


class Observer(Protocol):
    """What a supervisor tells while it works."""

    def line(self, child: str, line: str) -> None:
        """A child wrote a line."""

    def restarting(self, child: str, reason: str, delay_s: float) -> None:
        """A child died and is started again after `delay_s`."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a dead child is started again, and when no more."""

    max_deaths: int = 5
    window_s: float = 60.0
    first_delay_s: float = 0.2
    max_delay_s: float = 5.0

    def delay_s(self, num_deaths: int) -> float:
        """Return the pause before the start after the given number of deaths in the window."""
        return float(min(self.max_delay_s, self.first_delay_s * 2 ** (num_deaths - 1)))


class Supervisor:
    """Runs children until `stop`. Belongs to one event loop, on the main thread.

    A child that was not `up` yet and ends itself with an `error: ...` line is not started again:
    what keeps a service from starting at all (a missing model, a port in use) stays wrong. Nor are
    its deaths forgotten: one that is killed each time it loads a model would be started for ever.
    Exit code 2, a configuration error, is never retried.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        environment: Mapping[str, str],
        observer: Observer,
        *,
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            specs: The children, in the order in which `stop` ends them.
            environment: Of every child.
            observer: Told of lines and restarts.
            policy: Default: 5 deaths in 60 s are too many.
            clock: Seconds, monotonic.
        """
        self._specs = tuple(specs)
        self._up: set[str] = set()
        self._environment = environment
        self._observer = observer
        self._policy = policy or RestartPolicy()
        self._clock = clock
        self._tasks = TaskOwner()
        self._supervising: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, ChildProcess] = {}
        self._ending = {spec.name: asyncio.Event() for spec in self._specs}
        """By child: it is its turn to end, so that it is not started again."""
        self._killing = False
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Start all children at the same time, those first that others wait for.

        They are ended in the other direction.
        """
        for spec in reversed(self._specs):
            task = self._tasks.spawn(self._supervise(spec), name=f"supervise {spec.name}")
            self._supervising[spec.name] = task

    def mark_up(self, names: Iterable[str] | None = None) -> None:
        """Note that children do what they are for; None: all. It stays so when they die."""
        self._up.update([spec.name for spec in self._specs] if names is None else names)

    def pid(self, name: str) -> int | None:
        """Return the process id of a child that runs, None while it does not."""
        child = self._running.get(name)
        return child.pid if child is not None else None

    async def wait_failed(self) -> str:
        """Wait until a child is given up and return why; a bug of the supervisor is raised."""
        bug = asyncio.create_task(self._tasks.wait_failed(), name="wait for a supervisor's bug")
        waited: list[asyncio.Future[Any]] = [bug, self._failed]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if bug.done():
                bug.result()
            return self._failed.result()
        finally:
            bug.cancel()

    async def stop(self, timeout_s: float) -> None:
        """End the children one after another; one that takes longer is killed.

        Those whose turn has not come are started again if they die: the ones before them need them
        for what they finish.

        Args:
            timeout_s: Seconds that each child has to end after SIGTERM.
        """
        for spec in self._specs:
            self._ending[spec.name].set()
            task = self._supervising.get(spec.name)
            if task is None:
                continue
            if (child := self._running.get(spec.name)) is not None:
                child.send_signal(signal.SIGTERM)
            await asyncio.wait({task}, timeout=timeout_s)
            if not task.done() and (child := self._running.get(spec.name)) is not None:
                child.kill()
                await asyncio.wait({task}, timeout=_KILLED_TIMEOUT_S)
        await self._tasks.close()

    def kill(self) -> None:
        """Kill all children now; a `stop` that is waiting for them then ends."""
        for ending in self._ending.values():
            ending.set()
        self._killing = True
        for child in self._running.values():
            child.kill()

    async def _supervise(self, spec: ChildSpec) -> None:
        deaths: deque[float] = deque()
        ending = self._ending[spec.name]
        while not ending.is_set():
            try:
                child = await ChildProcess.start(spec, self._environment, self._observer.line)
            except OSError as exc:
                self._give_up(f"{in_words(spec.name)} cannot be started: {exc.strerror or exc}")
                return
            code = await self._run(child)
            if ending.is_set():
                return
            delay_s = self._judge(child, code, deaths)
            if delay_s is None or await _is_set_within(ending, delay_s):
                return

    async def _run(self, child: ChildProcess) -> int:
        """Wait for the child's end; a supervisor that goes away takes it along."""
        name = child.spec.name
        self._running[name] = child
        # `stop` and `kill` do not see a child that is just being started.
        if self._killing:
            child.kill()
        elif self._ending[name].is_set():
            child.send_signal(signal.SIGTERM)
        try:
            return await child.wait()
        finally:
            child.kill()
            del self._running[name]

    def _judge(self, child: ChildProcess, code: int, deaths: deque[float]) -> float | None:
        """Return the seconds until the next start; None: it was given up."""
        name, policy = in_words(child.spec.name), self._policy
        is_up = child.spec.name in self._up
        reason = describe_exit(code) + (f": {child.error}" if child.error else "")
        if code == ConfigError.exit_code or (child.error and code and not is_up):
            self._give_up(f"{name} cannot start: {child.error or describe_exit(code)}")
            return None
        now = self._clock()
        deaths.append(now)
        while is_up and deaths[0] <= now - policy.window_s:
            deaths.popleft()
        if len(deaths) >= policy.max_deaths:
            since = f"within {policy.window_s:g} s" if is_up else "before it was ready"
            self._give_up(f"{name} died {len(deaths)} times {since}, last with {reason}")
            return None
        delay_s = policy.delay_s(len(deaths))
        self._observer.restarting(child.spec.name, reason, delay_s)
        return delay_s

    def _give_up(self, message: str) -> None:
        if not self._failed.done():
            self._failed.set_result(message)


async def _is_set_within(event: asyncio.Event, delay_s: float) -> bool:
    """Wait; say whether the event was set meanwhile."""
    try:
        async with asyncio.timeout(delay_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
