"""Whose requests and figures the client at hand may read: its own, and a reader everybody's.

The client at hand is known through a context variable, which front doors set once they know whose
the key is; so it is for threads that work for the request too.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.kit import context

ANONYMOUS = "anonymous"
"""The one client that everybody is when there are no keys."""


def client_at_hand() -> str:
    """Return the name of the client whose call this is."""
    return context.client() or ANONYMOUS


class Readers:
    """Clients that may read what is known of all."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)

    def may_read(self, client: str) -> bool:
        """Whether the client at hand may read what is known of that one."""
        reader = client_at_hand()
        return reader == client or reader in self._names
