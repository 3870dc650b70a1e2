"""The life of a service's process: its event loop, its signals, its parent.

`run` is what `__main__` calls; `shutdown_signal` turns SIGTERM and SIGINT into something to await;
`exit_with_parent` ties a child to its supervisor. It knows no servers: draining is the caller's.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, NoReturn

import uvloop

from pagewire.kit.config import ConfigError
from pagewire.kit.errors import PagewireError
from pagewire.kit.logs import flush_logs, get_logger
from pagewire.kit.plain_text import one_line
from pagewire.kit.sockets import RUNTIME_DIR_ENV, SOCKET_FILES, remove_runtime_dir

PARENT_PID_ENV = "PAGEWIRE_PARENT_PID"

EXIT_INTERRUPTED = 130
_PR_SET_PDEATHSIG = 1
# Nobody else sends it, so it never stands for a drain, as SIGTERM does; and a process that has no
# handler yet, or none any more, ignores it.
_PARENT_DEATH_SIGNAL = signal.SIGURG

log = get_logger("pagewire.kit.lifecycle")


def run(main: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Run a service to its end on one uvloop event loop and return the exit code.

    A `ConfigError` gives 2 and a `PagewireError` 1, with one line on stderr and no traceback. Any
    other exception is a bug: it is logged with its traceback and gives 1.

    Args:
        main: Returns the coroutine to run, and its exit code (None is 0). What it does before it
            returns runs outside the loop, so `lambda: serve(load_config(Config, prog="x"))` fits.
    """
    try:
        coroutine = main()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(coroutine) or 0
    except ConfigError as exc:
        return _fail(str(exc), exc.exit_code)
    except PagewireError as exc:
        return _fail(exc.message, 1)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception:
        log.exception("service_crashed")
        return 1
    finally:
        _remove_files()
        flush_logs()


def _fail(message: str, exit_code: int) -> int:
    flush_logs()
    print(f"error: {one_line(message)}", file=sys.stderr)
    return exit_code


class ShutdownSignal:
    """Set by the first SIGTERM or SIGINT; await it, or call `wait`. A second one exits at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""

    def set(self, reason: str) -> None:
        """Ask for a shutdown from within; the first reason stays."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> str:
        """Wait for the shutdown and return its reason."""
        await self._event.wait()
        return self.reason

    def __await__(self) -> Generator[Any, None, str]:
        return self.wait().__await__()

    def on_signal(self, number: int) -> None:
        """Handle one signal; the event loop calls it."""
        name = signal.Signals(number).name
        if self.is_set():
            log.warning("immediate_exit", signal=name)
            exit_now(EXIT_INTERRUPTED)
        log.info("shutdown_requested", signal=name)
        self.set(name)


def shutdown_signal() -> ShutdownSignal:
    """Install the handlers in the running loop; call it once, before anything listens."""
    shutdown = ShutdownSignal()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shutdown.on_signal, number)
    watch_parent(_exit_orphaned)
    return shutdown


def watch_parent(on_death: Callable[[], object]) -> None:
    """Call `on_death` in the running loop when the supervisor has died.

    This takes the place of the exit at once that `exit_with_parent` sets up.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(_PARENT_DEATH_SIGNAL, _call_if_orphaned, on_death)


def exit_now(exit_code: int) -> NoReturn:
    """Leave without cleaning up anything but socket files and log lines."""
    _remove_files()
    flush_logs()
    os._exit(exit_code)


def _remove_files() -> None:
    """Remove our socket files; of a dead supervisor's stack also the folder, as the last one."""
    SOCKET_FILES.remove_all()
    runtime_dir = os.environ.get(RUNTIME_DIR_ENV)
    if runtime_dir and parent_is_gone():
        remove_runtime_dir(Path(runtime_dir))


def exit_with_parent() -> None:
    """Have the kernel tell this process when its supervisor dies, even by kill -9 (Linux).

    It then removes its socket files and exits at once: nobody is left to drain for. Does nothing in
    a process that no supervisor started. The kernel ties it to the *thread* that started this
    process, so a supervisor starts children from its main thread.
    """
    if PARENT_PID_ENV not in os.environ:
        return
    # Until the event loop has its own handler, for a death while this process is starting.
    signal.signal(_PARENT_DEATH_SIGNAL, _on_early_death_signal)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(_PARENT_DEATH_SIGNAL), 0, 0, 0) != 0:
            log.warning("no_parent_death_signal", errno=ctypes.get_errno())
    _call_if_orphaned(_exit_orphaned)  # it died before the call above


def _on_early_death_signal(_number: int, _frame: object) -> None:
    if parent_is_gone():
        # No log lines: whatever this interrupted may hold the lock of their queue.
        _remove_files()
        os._exit(EXIT_INTERRUPTED)


def _call_if_orphaned(on_death: Callable[[], object]) -> None:
    """Tell the parent's death from that of one of its threads.

    The threads of a killed process end one after another, and the kernel passes its children from
    one to the next with a signal each time. Only the last signal finds the parent gone.
    """
    if parent_is_gone():
        on_death()


def _exit_orphaned() -> NoReturn:
    log.warning("parent_died")
    exit_now(EXIT_INTERRUPTED)


def parent_is_gone() -> bool:
    """Say whether the supervisor that started this process, if one did, has died."""
    expected = os.environ.get(PARENT_PID_ENV, "")
    return expected.isdecimal() and os.getppid() != int(expected)


def child_environment(runtime_dir: Path | None = None) -> dict[str, str]:
    """Return the environment for a child that shall live and die with this process.

    The configuration file stays behind: a supervisor reads it and passes flags, because a file for
    a whole stack has keys that one service does not know.
    """
    environment = dict(os.environ)
    environment.pop("PAGEWIRE_CONFIG", None)
    environment[PARENT_PID_ENV] = str(os.getpid())
    if runtime_dir is not None:
        environment[RUNTIME_DIR_ENV] = str(runtime_dir)
    return environment
