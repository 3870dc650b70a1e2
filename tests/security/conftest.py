"""What the security tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.services import Services, running_services

API_KEY = "tests-only"


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The four services with mutual TLS; the gateway wants a key."""
    with running_services(tmp_path_factory.mktemp("services"), api_key=API_KEY) as running:
        yield running
