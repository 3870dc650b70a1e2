"""The response object: what it repeats of the request, its output, status and usage."""

from __future__ import annotations

import secrets
from typing import Any

from gateway.generation import Usage
from gateway.http.responses.request import ResponseCall
from gateway.live_generation import Generation

_ID_BYTES = 24


class ResponseObject:
    """Writes one response in all its states. Its id is random: who knows it may read it."""

    def __init__(self, call: ResponseCall, generation: Generation) -> None:
        self.response_id = f"resp_{secrets.token_hex(_ID_BYTES)}"
        self._call = call
        self._generation = generation

    def in_progress(self) -> dict[str, Any]:
        """Return the response as it begins."""
        return self._object("in_progress", [])

    def finished(self, output: list[dict[str, Any]], is_complete: bool) -> dict[str, Any]:
        """Return the response at its end; incomplete: it has as many tokens as it may have."""
        details = None if is_complete else {"reason": "max_output_tokens"}
        usage = _usage_object(self._generation.usage)
        status = "completed" if is_complete else "incomplete"
        return self._object(status, output) | {"incomplete_details": details, "usage": usage}

    def failed(self, output: list[dict[str, Any]], message: str) -> dict[str, Any]:
        """Return the response after an error."""
        error = {"code": "server_error", "message": message}
        return self._object("failed", output) | {"error": error}

    def _object(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        generation = self._generation
        params = generation.requests[0].request.sampling_params
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": generation.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": generation.model,
            "output": output,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "usage": None,
            **self._call.echoed,
        }


def _usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
