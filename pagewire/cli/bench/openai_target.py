"""Any server with OpenAI's HTTP API: completions or chat completions, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagewire.cli.bench.event_reader import EventReader
from pagewire.cli.bench.http_connection import Endpoint, exchange
from pagewire.cli.bench.record import BenchRequestError, Job, RequestRecord

_DONE = b"[DONE]"


class OpenAITarget:
    """Implements `Target`."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        is_chat: bool,
        ignore_eos: bool,
        extra_body: Mapping[str, Any],
        api_key: str | None,
        timeout_s: float,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            base_url: Without /v1.
            model: Name that the server gives it.
            is_chat: Prompts are messages of a user, and must be text.
            ignore_eos: Ask for all tokens; servers of OpenAI itself refuse the field.
            extra_body: More fields; they win.
            api_key: For `authorization`.
            timeout_s: For a whole request.

        Raises:
            ValueError: `base_url` is no URL.
        """
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        self._endpoint = Endpoint.of(base_url, path)
        self._model = model
        self._is_chat = is_chat
        self._more: dict[str, Any] = {"ignore_eos": True} if ignore_eos else {}
        self._more |= extra_body
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s

    async def run(self, job: Job, record: RequestRecord) -> None:
        reader = _AnswerReader(record)
        request = self._endpoint.request("POST", self._body(job), self._headers)
        await exchange(self._endpoint, request, reader.take, self._timeout_s)
        reader.check_end()

    async def close(self) -> None:
        """Connections end with their requests."""

    def _body(self, job: Job) -> bytes:
        prompt = job.prompt if isinstance(job.prompt, str) else list(job.prompt)
        asked: dict[str, Any] = {"prompt": prompt}
        if self._is_chat:
            asked = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            "model": self._model,
            **asked,
            "max_tokens": job.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._more,
        }
        return json.dumps(body).encode()


class _AnswerReader:
    """Reads the events of one answer into its record."""

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._events = EventReader()
        self._is_done = False
        self._has_end = False

    def take(self, body: bytes, now_s: float) -> None:
        for data in self._events.feed(body):
            if data == _DONE:
                self._is_done = True
            else:
                self._take_chunk(json.loads(data), now_s)

    def check_end(self) -> None:
        """Raise if the stream has ended without its end."""
        if not self._is_done:
            raise BenchRequestError("the stream ended without [DONE]")
        if not (self._has_end or self._record.arrivals_s):
            raise BenchRequestError("the answer has neither output nor a finish_reason")

    def _take_chunk(self, chunk: Any, now_s: float) -> None:
        if not isinstance(chunk, dict):
            raise BenchRequestError("an event is no object of OpenAI's API")
        if "error" in chunk:
            raise BenchRequestError(f"an error in the stream: {chunk['error']}")
        record, choices = self._record, chunk.get("choices") or ()
        self._has_end |= any(choice.get("finish_reason") for choice in choices)
        if any(map(_has_output, choices)):
            record.arrivals_s.append(now_s)
            if not record.is_counted_by_server:
                record.num_output_tokens += 1
        if usage := chunk.get("usage"):
            record.is_counted_by_server = True
            record.num_prompt_tokens = usage.get("prompt_tokens") or 0
            record.num_output_tokens = usage.get("completion_tokens") or 0
            details = usage.get("prompt_tokens_details") or {}
            record.num_cached_tokens = details.get("cached_tokens") or 0


def _has_output(choice: dict[str, Any]) -> bool:
    """Whether a choice has some of the model's own output."""
    if choice.get("text"):
        return True
    delta: dict[str, Any] = choice.get("delta") or {}
    return any(value for key, value in delta.items() if key != "role")
