"""How long the threads of this process were ready to run and had no core, as the kernel counts it.

Linux keeps it by thread, in the second field of /proc/self/task/*/schedstat, and forgets it with
the thread. So this is read again and again, and what is new each time adds up.
"""

from __future__ import annotations

from pathlib import Path

_TASKS = Path("/proc/self/task")


class RunQueueWait:
    """Adds up the waits of all threads. One reader at a time."""

    def __init__(self, tasks: Path = _TASKS) -> None:
        self._tasks = tasks
        self._total_ns = 0
        self._by_thread: dict[str, int] = {}

    def read_ns(self) -> int | None:
        """Return the sum so far; it never falls. None: this kernel does not count it.

        What a thread waited between the last look and its end is not seen.
        """
        ran_ns, waits = 0, dict[str, int]()
        for name in self._thread_names():
            try:
                fields = (self._tasks / name / "schedstat").read_text(encoding="ascii").split()
                ran_ns, waits[name] = ran_ns + int(fields[0]), int(fields[1])
            except (OSError, ValueError, IndexError):
                continue  # it has ended meanwhile
        if not ran_ns:
            return None  # a kernel that does not count says zero everywhere
        self._total_ns += sum(
            # A thread may have the number of one that has ended.
            wait if wait < (known := self._by_thread.get(name, 0)) else wait - known
            for name, wait in waits.items()
        )
        self._by_thread = waits
        return self._total_ns

    def _thread_names(self) -> list[str]:
        try:
            return [entry.name for entry in self._tasks.iterdir()]
        except OSError:
            return []
