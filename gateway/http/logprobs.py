"""Log-probabilities in the two shapes that OpenAI's endpoints have, and vLLM's for prompts.

A token is shown as its text, or as `token_id:N` where the client asks for that. A token that is no
text by itself, such as a part of a character, has U+FFFD in its text in chat, which gives the bytes
beside it; completions have `bytes:` and their hexadecimal digits, as OpenAI's, so that no two
tokens look alike there. JSON has no minus infinity: such a logprob is -9999.
"""

from __future__ import annotations

from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.generation import Logprob, Output, PromptLogprobs, TokenLogprobs

MIN_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class TokenFormat:
    """How tokens are shown."""

    as_token_ids: bool = False

    def text(self, token: Logprob) -> str:
        """Return how chat shows the token."""
        return f"token_id:{token.token_id}" if self.as_token_ids else _plain(token.token_bytes)

    def name(self, token_id: int, token_bytes: bytes) -> str:
        """Return how completions show the token, which tells it from others."""
        if self.as_token_ids:
            return f"token_id:{token_id}"
        try:
            return token_bytes.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


def shown_logprob(logprob: float) -> float:
    """Return a number that JSON has."""
    return max(logprob, MIN_LOGPROB)


def chat_logprobs(
    places: Iterable[TokenLogprobs], num_top: int, token_format: TokenFormat
) -> dict[str, Any]:
    """Return a choice's `logprobs` as chat has it."""
    content = []
    for place in places:
        entry = _chat_token(place.token, token_format)
        entry["top_logprobs"] = [_chat_token(each, token_format) for each in place.top[:num_top]]
        content.append(entry)
    return {"content": content, "refusal": None}


def prompt_logprobs(places: PromptLogprobs, num_top: int) -> list[dict[str, Any] | None]:
    """Return vLLM's form: by token id the token that is there, and the likeliest ones."""
    return [place and _by_token_id(place, num_top) for place in places]


class CompletionLogprobs:
    """Writes choices' `logprobs` as completions have it, for outputs that come piece by piece.

    `text_offset` counts the characters of all tokens that were written before; a token that goes
    on with an unfinished character has the offset of that character.
    """

    def __init__(self, num_top: int, token_format: TokenFormat, num_named: int = 0) -> None:
        """Prepare.

        Args:
            num_top: Candidates beside each token, as many at most.
            token_format: How tokens are shown.
            num_named: Of an output's tokens, where the request names its candidates.
        """
        self._num_top = num_top
        self._num_output_top = num_named or num_top
        self._format = token_format
        self._texts: dict[int, _Text] = {}

    def write(self, output: Output, first_prompt_token_id: int | None) -> dict[str, Any]:
        """Return the columns of what is new.

        Args:
            output: New output of one choice.
            first_prompt_token_id: Begin with the prompt, where the output has its logprobs; its
                first token has none. None: only the output's own.
        """
        columns = _Columns(self._texts.setdefault(output.index, _Text()))
        if first_prompt_token_id is not None and output.prompt_logprobs is not None:
            first = output.first_prompt_token
            columns.add(self._format.name(first_prompt_token_id, first), first, None, None)
            places = [each for each in output.prompt_logprobs if each is not None]
            self._add(columns, places, self._num_top)
        self._add(columns, output.logprobs, self._num_output_top)
        return {
            "text_offset": columns.text_offset,
            "token_logprobs": columns.token_logprobs,
            "tokens": columns.tokens,
            "top_logprobs": columns.top_logprobs,
        }

    def _add(self, columns: _Columns, places: Sequence[TokenLogprobs], num_top: int) -> None:
        for place in places:
            token, top = place.token, dict[str, float]()
            for each in (token, *place.top[:num_top]):
                # Two ids may spell the same; the first of them is there, or is the likelier one.
                name = self._format.name(each.token_id, each.token_bytes)
                top.setdefault(name, shown_logprob(each.logprob))
            name = self._format.name(token.token_id, token.token_bytes)
            columns.add(name, token.token_bytes, shown_logprob(token.logprob), top)


class _Text:
    """The text of the tokens so far, as far as its length goes."""

    def __init__(self) -> None:
        self._utf8: IncrementalDecoder = getincrementaldecoder("utf-8")("replace")
        self.num_chars = 0

    def push(self, token_bytes: bytes) -> None:
        self.num_chars += len(self._utf8.decode(token_bytes))


@dataclass(slots=True)
class _Columns:
    text: _Text
    text_offset: list[int] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)

    def add(
        self,
        token: str,
        token_bytes: bytes,
        logprob: float | None,
        top: dict[str, float] | None,
    ) -> None:
        self.text_offset.append(self.text.num_chars)
        self.text.push(token_bytes)
        self.token_logprobs.append(logprob)
        self.tokens.append(token)
        self.top_logprobs.append(top)


def _chat_token(token: Logprob, token_format: TokenFormat) -> dict[str, Any]:
    return {
        "token": token_format.text(token),
        "logprob": shown_logprob(token.logprob),
        "bytes": list(token.token_bytes),
    }


def _by_token_id(place: TokenLogprobs, num_top: int) -> dict[str, Any]:
    return {
        str(each.token_id): {
            "logprob": shown_logprob(each.logprob),
            "rank": each.rank,
            "decoded_token": _plain(each.token_bytes),
        }
        for each in (*place.top[:num_top], place.token)
    }


def _plain(token_bytes: bytes) -> str:
    return token_bytes.decode("utf-8", "replace")
