"""Imports that go on as if a package were not installed.

Owns one name of `sys.modules` for as long as the import lasts; knows nothing of who imports what.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast


@contextmanager
def hidden_module(name: str) -> Iterator[None]:
    """Make `import name` fail inside, unless it was imported before; afterwards it works again.

    For imports of this thread at the start of a process: other threads see it too.
    """
    # The import system's own sign for "not there".
    modules = cast(dict[str, object], sys.modules)
    if name in modules:
        yield
        return
    modules[name] = None
    try:
        yield
    finally:
        modules.pop(name, None)
