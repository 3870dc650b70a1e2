"""What third-party clients are told of the stack that they talk to."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

API_KEY = "sesame"
MODEL = "smollm2"
MAX_MODEL_LEN = 2048


@dataclass(frozen=True)
class Served:
    """A running stack.

    Attributes:
        http_url: Without /v1.
    """

    http_url: str

    @property
    def base_url(self) -> str:
        """As OpenAI's clients want it."""
        return f"{self.http_url}/v1"

    def http(self) -> httpx.Client:
        """A plain client with the key, to look at what another client did."""
        headers = {"authorization": f"Bearer {API_KEY}"}
        return httpx.Client(base_url=self.http_url, headers=headers, timeout=120)
