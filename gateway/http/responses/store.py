"""Finished responses of this gateway, within bounds of number and bytes: the oldest go first.

It is memory, not a database: other gateways don't know these responses, and a restart forgets
them. A client that must not depend on it sends the whole conversation each time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from gateway.access.readers import ANONYMOUS, client_at_hand
from gateway.generation import ChatMessage
from gateway.http.json_response import to_json
from pagewire.kit.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What is kept of a response."""

    response_id: str
    body: bytes
    """The response as JSON."""
    conversation: tuple[ChatMessage, ...]
    """Without instructions: what came before, the input, and the assistant's turn."""
    input_items: tuple[dict[str, Any], ...] = ()
    """What the request added to the conversation, as the API lists it."""
    client: str = ANONYMOUS
    """Who made it, and alone finds it."""

    @property
    def num_bytes(self) -> int:
        """An upper bound: a conversation's later responses share its messages, items its texts."""
        num_bytes = sum(len(to_json(item)) for item in self.input_items)
        num_bytes += sum(_num_bytes(message) for message in self.conversation)
        return len(self.body) + num_bytes


class ResponseStore:
    """Used from one event loop."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._num_bytes = 0

    def add(self, response: StoredResponse) -> None:
        """Keep a response; one that is larger than all the room is not kept."""
        num_bytes = response.num_bytes
        if num_bytes > self._max_bytes:
            return
        self._responses[response.response_id] = (response, num_bytes)
        self._num_bytes += num_bytes
        while len(self._responses) > self._max_responses or self._num_bytes > self._max_bytes:
            self._num_bytes -= self._responses.popitem(last=False)[1][1]

    def get(self, response_id: str, field: str = "response_id") -> StoredResponse:
        """Return a response of the client at hand, and count it as used.

        Raises:
            NotFoundError: It is not kept here; names `field`.
        """
        kept = self._responses.get(response_id)
        if kept is None or kept[0].client != client_at_hand():
            raise NotFoundError(
                f"Response with id '{response_id[:64]}' is not kept by this server. Responses are"
                " kept in memory, by the server that made them, until newer ones need the room",
                reason="RESPONSE_NOT_FOUND",
                field=field,
            )
        self._responses.move_to_end(response_id)
        return kept[0]

    def remove(self, response_id: str) -> None:
        """Forget a response of the client at hand.

        Raises:
            NotFoundError: It is not kept here.
        """
        self.get(response_id)
        self._num_bytes -= self._responses.pop(response_id)[1]


def _num_bytes(message: ChatMessage) -> int:
    texts = (message.content or "", message.reasoning_content, message.tool_calls_json)
    return sum(len(text.encode()) for text in texts)
