"""The page's files, read once: bytes, type and entity tag by name.

Nothing outside of the folder `static` can be named, because the files are found by looking there,
not by putting a client's path together with it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

_FOLDER = "static"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file."""

    body: bytes
    media_type: str
    etag: str
    """Strong, with its quotes."""


@lru_cache(maxsize=1)
def page_files() -> dict[str, PageFile]:
    """Return the files by name, which has no folder in it; reads them the first time."""
    folder = resources.files(__package__).joinpath(_FOLDER)
    files = {}
    for entry in folder.iterdir():
        media_type = _MEDIA_TYPES.get("." + entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            files[entry.name] = PageFile(body, media_type, etag)
    return files
