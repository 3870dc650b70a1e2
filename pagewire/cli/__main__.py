"""Entry point of `pagewire` and `python -m pagewire.cli`: finds the command and hands over to it.

It knows the commands' names and one line about each; a command's module is imported only when it
runs, so that `--help` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pagewire import __version__
from pagewire.kit import garbage, grpc_loop
from pagewire.kit.first_signals import end_on_sigterm
from pagewire.kit.plain_text import one_line

EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line."""

    name: str
    module: str
    """Module of this package whose `run(arguments) -> exit code` does the work."""
    summary: str
    arguments: tuple[str, ...] = ()
    """Put before the user's own."""


COMMANDS = (
    Command("serve", "serve", "run a whole stack on this machine and supervise it"),
    Command("chat", "chat", "talk to the model, one message or a conversation"),
    Command("complete", "complete", "continue a text"),
    Command("bench", "bench.command", "put load on a server and show what its clients saw of it"),
    Command("profile", "profile", "what the workers spend their time on, and a trace of each"),
    Command("trace", "trace", "where the time of a request went, as a waterfall"),
    Command("map", "map", "the boxes with live figures, and which one limits the others"),
    Command("log-level", "log_level", "change the log level of a service that runs"),
    Command("healthcheck", "healthcheck", "ask a service whether it serves; exit 0 or 1"),
    Command(
        "simulate", "simulate", "what the scheduler would do with a workload, without a device"
    ),
    Command("gateway", "service", "run the gateway alone", ("gateway",)),
    Command("tokenizer", "service", "run the tokenizer service alone", ("tokenizer_svc",)),
    Command("scheduler", "service", "run the scheduler service alone", ("scheduler_svc",)),
    Command("worker", "service", "run a worker alone", ("worker_svc",)),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code."""
    end_on_sigterm()
    garbage.make_rare()
    grpc_loop.take_older()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(f"pagewire {__version__}")
        return 0
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        return _fail(f"no command {name!r} (see pagewire --help)", 2)
    return _run(command, [*command.arguments, *arguments[1:]])


def _run(command: Command, arguments: list[str]) -> int:
    """Run a command; what a user can cause ends in one line, not in a traceback."""
    # Imported here: `--help` and `--version` need no gRPC.
    from pagewire.kit.config import ConfigError
    from pagewire.kit.errors import PagewireError

    module = importlib.import_module(f"pagewire.cli.{command.module}")
    try:
        return int(module.run(arguments))
    except ConfigError as exc:
        return _fail(str(exc), exc.exit_code)
    except PagewireError as exc:
        return _fail(exc.message, 1)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter must not try to flush at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(message: str, exit_code: int) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return exit_code


def usage() -> str:
    """Return the text of `pagewire --help`."""
    width = max(len(command.name) for command in COMMANDS)
    rows = [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS]
    return "\n".join(
        [
            "usage: pagewire COMMAND [options]",
            "",
            "Serves large language models as four small gRPC services.",
            "",
            "commands:",
            *rows,
            "",
            "`pagewire COMMAND --help` lists a command's options; `pagewire --version` prints the",
            "version.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
