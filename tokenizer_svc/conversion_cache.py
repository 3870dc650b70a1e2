"""Converted tokenizers on disk, so that a second start is quick.

One entry is one zip file, written beside its place and renamed into it, so readers see a whole
entry or none; zip's checksums show damage, and a damaged entry is built again. A cache that cannot
be written costs time, never a start. Knows nothing of what the files mean.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from pagewire.kit.logs import get_logger

Files = dict[str, bytes]

# Covers the header of most files: a vocabulary that changes without size or time is seen.
_HEAD_BYTES = 8 << 20
_log = get_logger(__name__)


def cache_directory() -> Path:
    """`$PAGEWIRE_CACHE_DIR`, or `~/.cache/pagewire`."""
    configured = os.environ.get("PAGEWIRE_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "pagewire"


def entry_path(source: Path, version: int, directory: Path | None = None) -> Path:
    """Where the conversion of `source` by converter `version` is kept.

    The key is the source's size, time of change and first bytes, not its path.
    """
    status = source.stat()
    with source.open("rb") as file:
        head = sha256(file.read(_HEAD_BYTES)).hexdigest()
    key = sha256(f"{version}/{status.st_size}/{status.st_mtime_ns}/{head}".encode()).hexdigest()
    return (directory or cache_directory()) / "tokenizers" / f"{key[:32]}.zip"


def cached(entry: Path, build: Callable[[], Files]) -> Files:
    """The files of `entry`; built, and kept for the next time, if it is missing or damaged."""
    files = _load(entry)
    if files is None:
        files = build()
        _store(entry, files)
    return files


def _load(entry: Path) -> Files | None:
    try:
        with zipfile.ZipFile(entry) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except FileNotFoundError:
        return None
    except (OSError, zipfile.BadZipFile, ValueError, EOFError) as error:
        _log.warning("cached tokenizer is unreadable, building it again", error=str(error))
        return None


def _store(entry: Path, files: Files) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=entry.parent, suffix=".tmp")
    except OSError as error:
        _log.warning("converted tokenizer is not cached", error=str(error))
        return
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        temporary.replace(entry)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        _log.warning("converted tokenizer is not cached", error=str(error))
