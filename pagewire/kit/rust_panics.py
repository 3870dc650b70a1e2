"""Panics of libraries written in Rust, as errors that handlers of errors see.

A panic crosses into Python as pyo3's PanicException, which is no `Exception`: it passes every
`except Exception` and would end a task or a service for what is mostly bad input.
"""

from __future__ import annotations

from types import TracebackType

_PANIC = "PanicException"  # each library has its own class of this name, none can be imported


class RustPanicError(RuntimeError):
    """A library panicked; the message is the library's own and is not for clients."""


def is_rust_panic(exc: BaseException) -> bool:
    """Whether it stands for a panic; for code that is too hot for a context manager."""
    return type(exc).__name__ == _PANIC


class RustPanicsRaised:
    """Raise a panic of the code inside as `RustPanicError`; anything else is left alone."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise what a panic stands for."""
        if exc is not None and is_rust_panic(exc):
            raise RustPanicError(str(exc)) from exc
