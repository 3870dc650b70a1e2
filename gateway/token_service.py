"""Questions about tokens that need no work of an engine: counts, ids, texts; for HTTP and gRPC.

An engine must serve the model, since its context length and vocabulary are part of the answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.engine_client import EngineInfo
from gateway.engine_pool import EnginePool
from gateway.generation import ChatPrompt
from gateway.readiness import Readiness
from gateway.request_plan import check_prompt_bytes
from gateway.tokenizer_client import TokenizerClient
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import check_token_ids

_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_MAX_FILES_BYTES = 8 * 1024 * 1024
# What Hugging Face makes of a tokenizer.json whose configuration names none.
_DEFAULT_CLASS = "PreTrainedTokenizerFast"


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A text or conversation as token ids."""

    token_ids: Sequence[int]
    max_model_len: int
    """The longest sequence of the model, prompt and output together, in tokens."""


class TokenService:
    """Used from one event loop."""

    def __init__(
        self,
        engines: EnginePool,
        tokenizer: TokenizerClient,
        readiness: Readiness,
        max_prompt_bytes: int,
    ) -> None:
        self._engines = engines
        self._tokenizer = tokenizer
        self._readiness = readiness
        self._max_prompt_bytes = max_prompt_bytes
        self._info: tuple[str, dict[str, Any]] | None = None
        """What `tokenizer_info` found for the tokenizer with this fingerprint."""

    async def tokenize(
        self, model: str, prompt: str | ChatPrompt, add_special_tokens: bool = True
    ) -> Tokenized:
        """Turn a text or conversation into token ids.

        Args:
            model: A served model's name; empty: the default one.
            prompt: What to tokenize; conversations go through the model's chat template.
            add_special_tokens: Of a text: add the tokens that the model wants at the start.

        Raises:
            PagewireError: The model is not served, or the prompt is refused.
        """
        info = self._choose(model)
        check_prompt_bytes(prompt, self._max_prompt_bytes)
        if isinstance(prompt, ChatPrompt):
            token_ids = await self._tokenizer.render_chat(prompt)
        else:
            token_ids = (await self._tokenizer.encode([prompt], add_special_tokens))[0]
        return Tokenized(token_ids, info.max_model_len)

    async def detokenize(
        self, model: str, token_ids: Sequence[int], skip_special_tokens: bool, field: str
    ) -> str:
        """Turn token ids into text.

        Raises:
            PagewireError: The model is not served, or ids are not its own; names `field`.
        """
        info = self._choose(model)
        # A token has at least a byte of text.
        if len(token_ids) > self._max_prompt_bytes:
            raise InvalidRequestError(
                f"{field}: {len(token_ids)} tokens are too many; at most"
                f" {self._max_prompt_bytes} are taken",
                reason="PROMPT_TOO_LONG",
                field=field,
            )
        check_token_ids(field, token_ids, info.vocab_size)
        return (await self._tokenizer.decode([token_ids], skip_special_tokens))[0]

    async def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token decoded alone; a part of a character becomes U+FFFD."""
        distinct = list(dict.fromkeys(token_ids))
        texts = await self._tokenizer.decode([[each] for each in distinct], False)
        by_id = dict(zip(distinct, texts, strict=True))
        return [by_id[token_id] for token_id in token_ids]

    async def tokenizer_info(self) -> dict[str, Any]:
        """Return the tokenizer's configuration, with its chat template.

        Raises:
            PagewireError: No tokenizer can be asked.
        """
        self._readiness.check()
        info = self._tokenizer.info
        fingerprint = info.fingerprint if info else ""
        if self._info is None or self._info[0] != fingerprint:
            files = await self._tokenizer.files((_CONFIG, _TEMPLATE), _MAX_FILES_BYTES)
            self._info = fingerprint, _tokenizer_info(files)
        return self._info[1]

    def _choose(self, model: str) -> EngineInfo:
        self._readiness.check()
        tokenizer = self._tokenizer.info
        return self._engines.choose(model, tokenizer.fingerprint if tokenizer else "")[1]


def _tokenizer_info(files: Mapping[str, bytes]) -> dict[str, Any]:
    config = json.loads(files.get(_CONFIG, b"{}"))
    template = files.get(_TEMPLATE)
    if template is not None:
        config["chat_template"] = template.decode("utf-8", "replace")
    return {"tokenizer_class": _DEFAULT_CLASS, **config}
