from collections.abc import Iterator

import pytest

from pagewire.kit import context


@pytest.fixture(autouse=True)
def _no_client_stays_named() -> Iterator[None]:
    """Tests that are no coroutines share one context: a name set in one is in all later ones."""
    token = context._CLIENT.set(None)
    yield
    context._CLIENT.reset(token)
