"""Secrets are in no form that is printed: of configurations, of clients, of error messages."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import gateway
import pagewire
from gateway.access.keys import KeyRing, parse_keys
from gateway.config import GatewayConfig
from pagewire.cli.session import ClientConfig
from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.config_fields import settings_of

SECRET = "xyzzy=plugh"
NAMES = {"api_key", "secret", "password", "private_key", "token_secret"}


def modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def secret_fields() -> dict[str, dataclasses.Field[object]]:
    """Fields of all dataclasses whose names say that they hold a secret, not only where one is."""
    found = {}
    for package in (pagewire, gateway):
        for module in modules(package):
            for value in vars(module).values():
                if isinstance(value, type) and dataclasses.is_dataclass(value):
                    for field in dataclasses.fields(value):
                        if field.name in NAMES and "Path" not in str(field.type):
                            found[f"{value.__qualname__}.{field.name}"] = field
    return found


def test_no_dataclass_shows_a_secret() -> None:
    fields = secret_fields()
    assert len(fields) >= 4
    assert [name for name, field in fields.items() if field.repr] == []


@pytest.mark.parametrize("kind", [GatewayConfig, ClientConfig])
def test_a_setting_that_is_a_secret_says_so(kind: type[object]) -> None:
    secrets = [
        setting
        for setting in settings_of(kind)
        if setting.name in NAMES and Path not in setting.kind.options
    ]
    assert secrets and all(setting.is_secret for setting in secrets)


@pytest.mark.parametrize("flag", [f"--api-key={SECRET}é", f"--api-key={SECRET},"])
def test_a_key_that_is_refused_is_not_repeated(flag: str) -> None:
    try:
        config = load_config(GatewayConfig, prog="x", argv=[flag, "--http-port=x"], env={})
    except ConfigError as error:
        assert "plugh" not in str(error)
    else:
        raise AssertionError(config)


def test_keys_are_kept_as_digests() -> None:
    ring = KeyRing(parse_keys([SECRET]))
    assert ring.client_of("plugh") == "xyzzy"
    assert "plugh" not in repr(vars(ring))
