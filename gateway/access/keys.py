"""API keys: reading them from settings and a file, and finding whose a secret is.

Secrets are held as digests and appear in no message. It knows neither HTTP nor gRPC.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gateway.access.client_limits import ClientLimits

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_FILE_BYTES = 1024 * 1024
_MAX_SECRET_CHARS = 1024
_LIMIT_NAMES = tuple(field.name for field in fields(ClientLimits))
_NONE = "none"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A client's name and the digest of one of its secrets."""

    name: str
    digest: bytes
    entry_digest: bytes
    """Of the whole entry: one setting, as NAME=SECRET, serves the gateway and its clients."""
    overrides: Mapping[str, int | None]
    """Limits that the key's line gives in place of the gateway's, by their field."""


class KeyRing:
    """The keys in use; empty: everybody may use the API."""

    def __init__(self, keys: Sequence[ApiKey] = ()) -> None:
        """Take the keys.

        Raises:
            ValueError: With a rule, if two clients share a secret or one has two sets of limits.
        """
        _check_distinct(keys)
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def client_of(self, secret: str) -> str | None:
        """Return the name of the client whose secret, or whole entry, this is; None: nobody's.

        All keys are compared, by digests of one length, so that timing says nothing about them.
        """
        digest = _digest(secret)
        found = None
        for key in self._keys:
            is_secret = hmac.compare_digest(digest, key.digest)
            if hmac.compare_digest(digest, key.entry_digest) or is_secret:
                found = key.name
        return found

    def limits(self, default: ClientLimits) -> dict[str, ClientLimits]:
        """Return the limits of every client by its name."""
        result: dict[str, ClientLimits] = {}
        for key in self._keys:
            if key.name not in result or key.overrides:
                result[key.name] = replace(default, **key.overrides)
        return result


def parse_keys(entries: Iterable[str]) -> list[ApiKey]:
    """Read `NAME=SECRET` or `SECRET` entries; those without a name are key-1, key-2, ...

    Raises:
        ValueError: With a rule that names the entry by its place.
    """
    return [_parse(entry, f"key-{place}", {}) for place, entry in enumerate(entries, 1)]


def read_key_file(path: Path) -> list[ApiKey]:
    """Read a file of one `NAME=SECRET` a line, with limits of its own behind it if wanted.

    For example `team-a=s3cret requests_per_minute=60 concurrent_requests=none`. Empty lines and
    those that begin with # count for nothing.

    Raises:
        ValueError: With a rule that names the line.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(f"must have at most {_MAX_FILE_BYTES} bytes")
    keys = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            overrides = dict(_parse_limit(word) for word in words[1:])
            ClientLimits(**overrides)
            keys.append(_parse(words[0], None, overrides))
        except ValueError as exc:
            rule = exc.args[0] if len(exc.args) == 1 else " ".join(map(str, exc.args))
            raise ValueError(f"line {number}: {rule}") from None
    if not keys:
        raise ValueError("has no key; a line is NAME=SECRET")
    return keys


def _parse(entry: str, default_name: str | None, overrides: Mapping[str, int | None]) -> ApiKey:
    name, equals, secret = entry.partition("=")
    if not equals or not _NAME.fullmatch(name):
        if default_name is None:
            raise ValueError("must be NAME=SECRET, with a name of letters, digits, '.', '_', '-'")
        name, secret = default_name, entry
    if not secret.strip("="):
        # `c2VjcmV0==` would be a client of that name whose secret is `=`.
        raise ValueError("a key that ends in = needs a name: NAME=SECRET")
    if not (secret.isascii() and secret.isprintable()) or len(secret) > _MAX_SECRET_CHARS:
        raise ValueError(f"keys must be printable ASCII of at most {_MAX_SECRET_CHARS} characters")
    return ApiKey(name, _digest(secret), _digest(entry), overrides)


def _parse_limit(word: str) -> tuple[str, int | None]:
    name, _, value = word.partition("=")
    if name not in _LIMIT_NAMES or not (value == _NONE or value.isdecimal()):
        raise ValueError(f"limits are {', '.join(_LIMIT_NAMES)}, each =NUMBER or =none")
    return name, None if value == _NONE else int(value)


def _check_distinct(keys: Sequence[ApiKey]) -> None:
    owners: dict[bytes, str] = {}
    limited: set[str] = set()
    for key in keys:
        for digest in (key.digest, key.entry_digest):
            if owners.setdefault(digest, key.name) != key.name:
                raise ValueError(f"{owners[digest]} and {key.name} have the same secret")
        if key.overrides and key.name in limited:
            raise ValueError(f"{key.name} has limits on two lines")
        limited.update([key.name] if key.overrides else [])


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
