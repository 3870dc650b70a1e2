"""Faults as data: what is struck, how, and how it heals."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from tests.chaos.stack import ChaosStack


class Kind(Enum):
    """What may happen to a process, or to a link."""

    KILL = "kill -9"
    TERMINATE = "SIGTERM"
    STOP = "SIGSTOP"
    RESET = "resets"
    DELAY = "delay"
    BLACKHOLE = "blackhole"


@dataclass(frozen=True)
class Fault:
    """One fault; `strike`, then `heal`."""

    kind: Kind
    target: str | tuple[str, str]
    """A process, or a link of two."""

    def __str__(self) -> str:
        target = self.target if isinstance(self.target, str) else "->".join(self.target)
        return f"{self.kind.value} {target}"

    def strike(self, stack: ChaosStack) -> Struck:
        """Do it."""
        if isinstance(self.target, tuple):
            _disturb(stack, self.kind, self.target)
            return Struck(self, 0)
        number = {
            Kind.KILL: signal.SIGKILL,
            Kind.TERMINATE: signal.SIGTERM,
            Kind.STOP: signal.SIGSTOP,
        }[self.kind]
        return Struck(self, stack.signal(self.target, number))


@dataclass(frozen=True)
class Struck:
    """A fault that was done."""

    fault: Fault
    pid: int

    async def heal(self, stack: ChaosStack) -> None:
        """End what lasts, and wait until the process serves again."""
        target = self.fault.target
        if isinstance(target, tuple):
            proxy = stack.proxies[target]
            proxy.delay_s, proxy.blackhole = 0.0, False
        elif self.fault.kind is Kind.STOP:
            stack.signal(target, signal.SIGCONT)
            await stack.wait_serving(target)
        else:
            await stack.wait_replaced(target, self.pid)


DELAY_S = 0.2


def _disturb(stack: ChaosStack, kind: Kind, link: tuple[str, str]) -> None:
    proxy = stack.proxies[link]
    if kind is Kind.RESET:
        proxy.reset()
    elif kind is Kind.DELAY:
        proxy.delay_s = DELAY_S
    else:
        proxy.blackhole = True
