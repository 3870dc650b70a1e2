"""The stack that an `LLM` starts for itself, and ends with itself.

Its public API is on a Unix socket in a private directory, and wants a key that only this process
knows. It ends with `close`, with the garbage collection of its owner, with the interpreter, and,
through the kernel, with the process.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from pagewire.cli.own_stack import start_own_stack
from pagewire.cli.stack_config import TokenizerOptions
from pagewire.engine_config import EngineConfig
from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.config_fields import Setting, settings_of

# Nobody but this process asks it for anything, so these bounds protect nobody.
_FLAGS = (
    "--grpc-transport=uds",
    "--request-timeout=31000000",
    "--max-buffered-output-bytes=256M",
    "--max-outputs-per-request=4096",
)


class LocalStack:
    """A running stack. `close` may be called from any thread, more than once."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Start it and wait until it serves.

        Args:
            settings: Of the engine and the tokenizer, by name.

        Raises:
            TypeError: There is no such setting.
            ValueError: A value is wrong; it names the setting.
            ServiceUnavailableError: It did not start; it has said why on standard error.
        """
        flags = to_flags(settings)
        self.api_key = secrets.token_urlsafe(32)
        self._owner_pid = os.getpid()
        self._exit = ExitStack()
        self._stack = self._exit.enter_context(
            start_own_stack([*flags, *_FLAGS], {"PAGEWIRE_API_KEY": self.api_key})
        )

    @property
    def target(self) -> str:
        """Of its public gRPC API."""
        return self._stack.target

    def is_alive(self) -> bool:
        """Whether it runs; a service of it that died is started again by it."""
        return self._stack.is_alive()

    def close(self) -> None:
        """End it and wait for its end; idempotent."""
        if os.getpid() == self._owner_pid:  # a forked copy of this process does not own it
            self._exit.close()


def to_flags(settings: Mapping[str, Any]) -> list[str]:
    """Return the flags of `pagewire serve` for settings of engine and tokenizer, checked.

    Raises:
        TypeError: There is no such setting.
        ValueError: A value is wrong; it names the setting.
    """
    known = {s.name: s for cls in (EngineConfig, TokenizerOptions) for s in settings_of(cls)}
    for name in settings:
        if name not in known:
            raise TypeError(f"LLM has no option {name!r}; there are: {', '.join(sorted(known))}")
    given = {name: value for name, value in settings.items() if value is not None}
    flags = {name: _flag(known[name], value) for name, value in given.items()}
    engine = {s.name for s in settings_of(EngineConfig)}
    argv = [flag for name, flag in flags.items() if name in engine]
    try:
        load_config(EngineConfig, prog="LLM", argv=argv)
    except ConfigError as exc:
        raise ValueError(str(exc)) from None
    return list(flags.values())


def _flag(setting: Setting, value: Any) -> str:
    kind = setting.kind
    if kind.is_bool:
        if not isinstance(value, bool):
            raise ValueError(f"{setting.name}: {value!r} must be True or False")
        return setting.flag if value else "--no-" + setting.flag[2:]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind.is_tuple:
        value = (value,) if isinstance(value, str) else tuple(value)
    try:
        return f"{setting.flag}={kind.to_text(value)}"
    except ValueError as exc:
        raise ValueError(f"{setting.name}: {value!r} {exc}") from exc
