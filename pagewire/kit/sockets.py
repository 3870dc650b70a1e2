"""Listen addresses and unix socket files: whose they are, and who removes them.

A stack that `pagewire serve` starts keeps its sockets in one runtime directory. Each process
removes its own files, also when its supervisor was killed; the supervisor removes the directory, or
the last one out if it is dead, with what killed processes left in it. The next `make_runtime_dir`
sweeps what a machine-wide kill left behind. It opens no gRPC port.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

from pagewire.kit.errors import FailedPreconditionError

RUNTIME_DIR_ENV = "PAGEWIRE_RUNTIME_DIR"

# sun_path of sockaddr_un on Linux, less its closing zero.
_MAX_PATH_BYTES = 107
_LISTEN_RULE = "must be host:port (port 0: any free one) or unix:/path"
HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(\d{1,5})")
_RUNTIME_DIRS = "pagewire-*-*"
_RUNTIME_DIR_NAME = re.compile(r"pagewire-(\d+)-.+")


def check_listen(name: str, address: str) -> None:
    """Check the form of a listen address.

    Raises:
        ValueError: With (name, value, rule).
    """
    path = unix_path(address)
    if path is not None:
        if not path.is_absolute():
            raise ValueError(name, address, _LISTEN_RULE)
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise ValueError(name, address, f"must be at most {_MAX_PATH_BYTES} bytes of path")
        return
    match = HOST_PORT.fullmatch(address)
    if match is None or int(match[2]) > 65535:
        raise ValueError(name, address, _LISTEN_RULE)


def unix_path(address: str) -> Path | None:
    """Return the file of a `unix:` address, None for any other address."""
    if not address.startswith("unix:"):
        return None
    rest = address.removeprefix("unix:")
    return Path("/" + rest.lstrip("/")) if rest.startswith("/") else Path(rest)


def with_port(address: str, port: int) -> str:
    """Return the TCP address with the port that was really bound."""
    return f"{address.rpartition(':')[0]}:{port}"


def cannot_listen(address: str, why: str) -> FailedPreconditionError:
    """Return the error of an address that cannot be had."""
    message = f"cannot listen on {address}: {why}; choose another address"
    return FailedPreconditionError(message, reason="CANNOT_LISTEN")


def check_bindable(address: str) -> None:
    """Bind a TCP address for a moment, for the reason that gRPC would not give.

    Raises:
        FailedPreconditionError: The address cannot be had, and why.
    """
    host, _, port = address.rpartition(":")
    try:
        resolved = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, sockaddr = resolved[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(sockaddr)
            probe.listen()
    except OSError as exc:
        raise cannot_listen(address, (exc.strerror or "no such address").lower()) from exc


class SocketFiles:
    """The unix socket files that this process listens on. Used from the event loop's thread."""

    def __init__(self) -> None:
        self._inodes: dict[Path, int] = {}

    def prepare(self, path: Path) -> None:
        """Make way for a socket: unlink a stale one, refuse a living one.

        Raises:
            FailedPreconditionError: Somebody listens there, or the path is no socket.
        """
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise cannot_listen(f"unix:{path}", "the file exists and is no socket")
        if is_listening(path):
            raise cannot_listen(f"unix:{path}", "another process listens there")
        path.unlink(missing_ok=True)

    def add(self, path: Path) -> None:
        """Note that the file at `path` is ours from now on."""
        self._inodes[path] = path.lstat().st_ino

    def remove(self, path: Path) -> None:
        """Unlink our file, unless another process has put its own there; idempotent."""
        inode = self._inodes.pop(path, None)
        with contextlib.suppress(FileNotFoundError):
            if inode is not None and path.lstat().st_ino == inode:
                path.unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Unlink all of them, for an exit that nothing else comes after."""
        for path in list(self._inodes):
            self.remove(path)


# What a process listens on is a fact about the process, as its signal handlers are: an immediate
# exit must find all of it.
SOCKET_FILES = SocketFiles()


def is_listening(path: Path) -> bool:
    """Say whether a process accepts connections on the socket file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a full backlog or no permission: somebody is there
    return True


def make_runtime_dir(base: Path | None = None) -> Path:
    """Create a private directory for the sockets of one stack, and sweep those of dead stacks.

    The creator passes it to its children in `PAGEWIRE_RUNTIME_DIR`, which lets the last of them
    remove it should the creator die, and removes it itself after they have ended.
    """
    root = _runtime_root(base)
    for entry in root.glob(_RUNTIME_DIRS):
        _sweep(entry)
    return Path(tempfile.mkdtemp(prefix=f"pagewire-{os.getpid()}-", dir=root))


def listening_sockets(pattern: str, base: Path | None = None) -> dict[Path, list[Path]]:
    """Find sockets of this user's living stacks, by the stack's runtime directory.

    Args:
        pattern: Of the sockets' names.
        base: Folder of the runtime directories; default: that of `make_runtime_dir`.
    """
    found = {}
    for directory in sorted(_runtime_root(base).glob(_RUNTIME_DIRS)):
        try:
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            sockets = [path for path in sorted(directory.glob(pattern)) if is_listening(path)]
        except OSError:
            continue  # the stack has just ended
        if sockets:
            found[directory] = sockets
    return found


def _runtime_root(base: Path | None) -> Path:
    root = base or Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return root if os.access(root, os.W_OK) else Path(tempfile.gettempdir())


def remove_runtime_dir(directory: Path) -> None:
    """Remove the directory if it is this stack's runtime directory and nobody listens in it."""
    if os.environ.get(RUNTIME_DIR_ENV) == str(directory) or _creator_pid(directory) == os.getpid():
        with contextlib.suppress(OSError):
            _remove_if_dead(directory)


def _creator_pid(directory: Path) -> int | None:
    match = _RUNTIME_DIR_NAME.fullmatch(directory.name)
    return int(match[1]) if match else None


def _sweep(directory: Path) -> None:
    """Remove a runtime directory of ours whose creator is gone and whose sockets are dead.

    Other process-id namespaces may share the folder, so a missing pid alone proves nothing.
    """
    pid = _creator_pid(directory)
    if pid is None or Path(f"/proc/{pid}").exists():
        return
    with contextlib.suppress(OSError):
        if directory.is_symlink() or directory.stat().st_uid != os.getuid():
            return
        _remove_if_dead(directory)


def _remove_if_dead(directory: Path) -> None:
    files = list(directory.iterdir())
    if all(_is_dead_socket(file) for file in files):
        for file in files:
            file.unlink(missing_ok=True)
        directory.rmdir()


def _is_dead_socket(file: Path) -> bool:
    try:
        is_socket = stat.S_ISSOCK(file.lstat().st_mode)
    except FileNotFoundError:
        return True  # its process has just removed it
    return is_socket and not is_listening(file)
